-- Limit keys (docs/guides/budgets.md): the value by which the events of a destination are told apart, and the flow of
-- the deliveries with it. Both are NULL where the destination had no limit keys when the event was stored.
--
-- A new index blocks writes while it reads the whole table. IF NOT EXISTS: an operator may have made the columns and the
-- indexes before, while Weir ran (docs/operations/upgrades.md).
ALTER TABLE events ADD COLUMN limit_key text; -- the key that the event names itself
ALTER TABLE deliveries ADD COLUMN IF NOT EXISTS flow_id uuid;
ALTER TABLE deliveries ADD COLUMN limit_key text;
ALTER TABLE attempts ADD COLUMN IF NOT EXISTS flow_id uuid;
CREATE INDEX IF NOT EXISTS deliveries_due_of_flow ON deliveries (flow_id, is_replay, next_attempt_at, id)
    INCLUDE (created_at, state) WHERE state IN (0, 2) AND flow_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS deliveries_of_flow ON deliveries (flow_id, id) WHERE flow_id IS NOT NULL;
CREATE INDEX attempts_of_flow ON attempts (flow_id, sent_at) WHERE flow_id IS NOT NULL AND sent_at IS NOT NULL;
