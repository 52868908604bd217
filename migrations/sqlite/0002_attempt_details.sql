-- What the owner of a destination needs to find out why an attempt ended as it did. NULL where it is absent, and in
-- attempts of earlier versions.
ALTER TABLE attempts ADD COLUMN signed_at INTEGER; -- the signed time, which is the webhook-timestamp of the request
ALTER TABLE attempts ADD COLUMN connection TEXT; -- JSON: [remote address, connect_ms, tls_ms]
ALTER TABLE attempts ADD COLUMN response_headers TEXT; -- JSON: array of [name, value]; no credentials
