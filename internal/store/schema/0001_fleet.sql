-- Documents are the JSON of internal/fleet and internal/store; columns beside
-- them exist to be looked up by, and are written together with them.
CREATE TABLE node (
  name TEXT PRIMARY KEY,
  ek   TEXT UNIQUE, -- NULL before enrolment
  doc  BLOB NOT NULL
) STRICT;

CREATE TABLE node_mac (
  mac  TEXT PRIMARY KEY,
  node TEXT NOT NULL REFERENCES node(name) ON DELETE CASCADE
) STRICT;
CREATE INDEX node_mac_node ON node_mac(node);

CREATE TABLE pool (
  name TEXT PRIMARY KEY,
  doc  BLOB NOT NULL
) STRICT;

CREATE TABLE image (
  digest    TEXT PRIMARY KEY,
  published INTEGER NOT NULL, -- Unix nanoseconds
  doc       BLOB NOT NULL
) STRICT;

CREATE TABLE rollout (
  id  INTEGER PRIMARY KEY, -- "r" + id is its name
  doc BLOB NOT NULL        -- without the moves
) STRICT;

CREATE TABLE move (
  rollout INTEGER NOT NULL REFERENCES rollout(id),
  seq     INTEGER NOT NULL, -- place in the order of the rollout
  doc     BLOB NOT NULL,
  PRIMARY KEY (rollout, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
  id      INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice
  at      INTEGER NOT NULL,                  -- Unix nanoseconds
  actor   TEXT NOT NULL,
  node    TEXT NOT NULL,
  kind    TEXT NOT NULL,
  message TEXT NOT NULL
) STRICT;
CREATE INDEX event_node ON event(node, id);

CREATE TABLE enrolment (
  node TEXT PRIMARY KEY REFERENCES node(name) ON DELETE CASCADE,
  doc  BLOB NOT NULL
) STRICT;

CREATE TABLE ticket (
  kind    TEXT NOT NULL,
  key     TEXT NOT NULL,
  node    TEXT NOT NULL,
  expires INTEGER NOT NULL, -- Unix nanoseconds
  payload BLOB,
  PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX ticket_expires ON ticket(expires);
CREATE INDEX ticket_node ON ticket(node);

CREATE TABLE lease (
  ip  TEXT PRIMARY KEY,
  doc BLOB NOT NULL
) STRICT;
