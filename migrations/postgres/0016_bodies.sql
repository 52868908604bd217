-- What the body of a destination's requests is; destinations of earlier versions get the envelope.
ALTER TABLE destinations ADD COLUMN body text NOT NULL DEFAULT '{}'; -- JSON: {format, content_type, source}
