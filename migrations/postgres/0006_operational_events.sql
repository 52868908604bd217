-- Weir's own events (`weir.*`: alerts and test events) are rare among all events, and people look for them. The index has
-- only them, so that other events do not pay for it.
-- The partitions of all days get it here, and those of later days with the columns of the table. Processes that store
-- events wait while the index of a partition is made: some seconds for ten million events.
CREATE INDEX events_operational ON events (id) WHERE starts_with(event_type, 'weir.');
