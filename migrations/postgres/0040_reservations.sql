-- Slots of limit groups that callers outside Weir have taken: each counts in the windows of its group.
CREATE TABLE reservations (
    id           uuid   NOT NULL PRIMARY KEY, -- made in the order of time: retention deletes by it
    group_id     uuid   NOT NULL,
    cost         bigint NOT NULL CHECK (cost > 0),
    created_at   bigint NOT NULL,
    starts_at    bigint NOT NULL,
    ends_at      bigint NOT NULL,
    cancelled_at bigint -- given back before starts_at; NULL: not
);
CREATE INDEX reservations_of_group ON reservations (group_id, ends_at, id);
