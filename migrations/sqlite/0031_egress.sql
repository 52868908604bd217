-- How a destination is reached; NULL: as the installation does. The secrets stand apart, so that they can be encrypted alone.
ALTER TABLE destinations ADD COLUMN egress TEXT; -- JSON: {proxy, ca, client_certificate}
ALTER TABLE destinations ADD COLUMN egress_secrets TEXT; -- JSON: {proxy_password, client_key}
