-- Limit groups: budgets that several destinations share. limit_changes has their limits too, by the id of the group.
CREATE TABLE limit_groups (
    id            uuid   NOT NULL PRIMARY KEY,
    tenant        text   NOT NULL, -- '*': its members may be of any tenant
    name          text   NOT NULL,
    rate_limits   text   NOT NULL, -- JSON, as in destinations
    max_in_flight bigint CHECK (max_in_flight > 0),
    created_at    bigint NOT NULL,
    updated_at    bigint NOT NULL
);
CREATE UNIQUE INDEX limit_groups_by_name ON limit_groups (tenant, name);
CREATE INDEX limit_groups_edited ON limit_groups (updated_at, id);
-- Which destinations are and were in a group: their sends count in its windows.
CREATE TABLE limit_group_members (
    group_id       uuid   NOT NULL,
    destination_id uuid   NOT NULL,
    joined_at      bigint NOT NULL,
    left_at        bigint,
    PRIMARY KEY (group_id, destination_id, joined_at)
);
CREATE INDEX limit_group_members_present ON limit_group_members (group_id, destination_id) WHERE left_at IS NULL;
CREATE INDEX limit_group_members_left ON limit_group_members (group_id, left_at) WHERE left_at IS NOT NULL;
ALTER TABLE destinations ADD COLUMN limit_group text; -- lgr_…; NULL: none
ALTER TABLE destinations ADD COLUMN weight bigint; -- its part of the group's budget; NULL: 1
-- The shards that it has left and that may still grant, as a JSON array; NULL: none.
ALTER TABLE destinations ADD COLUMN left_homes text;
