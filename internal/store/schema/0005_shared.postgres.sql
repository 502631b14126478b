-- What several servers on one database need: each keeps nodes and live
-- rollouts in memory and asks for what has changed since it last looked.
-- Every write is stamped with the revision that its transaction makes; writers
-- take turns, so revisions are committed in order.
CREATE TABLE revision (
  one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
  rev BIGINT NOT NULL
);
INSERT INTO revision (rev) VALUES (0);

ALTER TABLE node ADD COLUMN rev BIGINT NOT NULL DEFAULT 0;
ALTER TABLE rollout ADD COLUMN rev BIGINT NOT NULL DEFAULT 0;
ALTER TABLE move ADD COLUMN rev BIGINT NOT NULL DEFAULT 0;
CREATE INDEX node_rev ON node (rev);
CREATE INDEX rollout_rev ON rollout (rev);
CREATE INDEX move_rev ON move (rollout, rev);

CREATE TABLE gone (
  node TEXT COLLATE "C" PRIMARY KEY,
  rev  BIGINT NOT NULL
);
CREATE INDEX gone_rev ON gone (rev);

CREATE FUNCTION turnout_rev() RETURNS BIGINT LANGUAGE plpgsql AS $$
BEGIN
  IF coalesce(current_setting('turnout.rev', true), '') = '' THEN
    RAISE EXCEPTION 'fleet state is written by pxeserver only: use its commands or its API';
  END IF;
  RETURN current_setting('turnout.rev')::bigint;
END $$;

CREATE FUNCTION turnout_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.rev := turnout_rev();
  RETURN NEW;
END $$;

CREATE FUNCTION turnout_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO gone (node, rev) VALUES (OLD.name, turnout_rev())
    ON CONFLICT (node) DO UPDATE SET rev = excluded.rev;
  RETURN NULL;
END $$;

CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON node FOR EACH ROW EXECUTE FUNCTION turnout_stamp();
CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON rollout FOR EACH ROW EXECUTE FUNCTION turnout_stamp();
CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON move FOR EACH ROW EXECUTE FUNCTION turnout_stamp();
CREATE TRIGGER gone AFTER DELETE ON node FOR EACH ROW EXECUTE FUNCTION turnout_gone();

-- What heartbeats without news have said, for the servers they did not come
-- to. Not logged: it is said again within seconds. When a node was seen is
-- kept in "seen" too, which lasts.
CREATE UNLOGGED TABLE said (
  node   TEXT COLLATE "C" PRIMARY KEY REFERENCES node (name) ON DELETE CASCADE,
  at     BIGINT NOT NULL, -- Unix nanoseconds
  server TEXT NOT NULL,   -- that it came to
  turn   BIGINT NOT NULL, -- rises with each time a server tells
  doc    BYTEA NOT NULL   -- the report
);
CREATE INDEX said_turn ON said (turn);
CREATE SEQUENCE said_turns;
