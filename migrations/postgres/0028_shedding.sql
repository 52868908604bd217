-- Which requests are refused under overload. Empty until somebody sets it.
CREATE TABLE shed_policy (
    single boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    policy text    NOT NULL -- JSON
);
