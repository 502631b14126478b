-- When a node was last heard of, beside its document: liveness changes with
-- every heartbeat, the rest of a node hardly ever.
CREATE TABLE seen (
  node TEXT PRIMARY KEY REFERENCES node(name) ON DELETE CASCADE,
  at   INTEGER NOT NULL -- Unix nanoseconds
) STRICT, WITHOUT ROWID;
