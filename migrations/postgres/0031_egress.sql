-- How a destination is reached; NULL: as the installation does. The secrets stand apart, so that they can be encrypted alone.
ALTER TABLE destinations ADD COLUMN egress text; -- JSON: {proxy, ca, client_certificate}
ALTER TABLE destinations ADD COLUMN egress_secrets text; -- JSON: {proxy_password, client_key}
