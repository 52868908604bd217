-- Weir's own events (`weir.*`: alerts and test events) are rare among all events, and people look for them. The index has
-- only them, so that other events do not pay for it.
-- The partitions of all days get the index here. A later partition gets it when it is made. Processes that store events
-- wait until this migration commits, because it reads all events.
CREATE INDEX events_operational ON events (id) WHERE starts_with(event_type, 'weir.');
