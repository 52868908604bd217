-- Slots of limit groups that callers outside Weir have taken: each counts in the windows of its group.
CREATE TABLE reservations (
    id           BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16), -- made in the order of time: retention deletes by it
    group_id     BLOB    NOT NULL,
    cost         INTEGER NOT NULL CHECK (cost > 0),
    created_at   INTEGER NOT NULL,
    starts_at    INTEGER NOT NULL,
    ends_at      INTEGER NOT NULL,
    cancelled_at INTEGER -- given back before starts_at; NULL: not
) STRICT, WITHOUT ROWID;
CREATE INDEX reservations_of_group ON reservations (group_id, ends_at, id);
