-- Weir's own events (`weir.*`: alerts and test events) are rare among all events, and people look for them. The index has
-- only them, so that other events do not pay for it.
CREATE INDEX events_operational ON events (id) WHERE instr(event_type, 'weir.') = 1;
