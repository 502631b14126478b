-- Firmware measurements by hardware model.
CREATE TABLE baseline (
  id  TEXT PRIMARY KEY,
  doc BLOB NOT NULL
) STRICT;
