-- What parts of the server keep for themselves: settings of BMCs, the state
-- of recovery, how far alerts were sent, usage.
CREATE TABLE record (
  kind TEXT NOT NULL,
  key  TEXT NOT NULL,
  node TEXT NOT NULL, -- '' or the node with which it goes
  doc  BLOB NOT NULL,
  PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX record_node ON record(node) WHERE node <> '';
