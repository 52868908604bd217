-- Which requests are refused under overload. Empty until somebody sets it.
CREATE TABLE shed_policy (
    single INTEGER NOT NULL PRIMARY KEY CHECK (single = 1),
    policy TEXT    NOT NULL -- JSON
) STRICT;
