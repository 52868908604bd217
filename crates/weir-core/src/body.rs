//! The body that a destination receives: Weir's envelope, the bare `data`, or a CloudEvent.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::event::EventBody;

/// The longest content type and CloudEvents source, in bytes.
pub const MAX_CONTENT_TYPE: usize = 255;
pub const MAX_SOURCE: usize = 255;

/// The content type of a structured CloudEvent, unless a destination adds a parameter to it.
pub const CLOUDEVENTS_TYPE: &str = "application/cloudevents+json";
const JSON_TYPE: &str = "application/json";

/// The form of the body.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, strum::EnumString, strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum BodyFormat {
    /// `{"id", "type", "timestamp", "data"}`.
    #[default]
    Envelope,
    /// `data` byte for byte as ingested, without an envelope.
    Data,
    /// CloudEvents 1.0 in structured mode: one JSON object.
    Cloudevents,
    /// CloudEvents 1.0 in binary mode: `data` is the body, and the rest is in `ce-…` headers.
    CloudeventsBinary,
}

impl BodyFormat {
    pub const ALL: [Self; 4] = [Self::Envelope, Self::Data, Self::Cloudevents, Self::CloudeventsBinary];

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    pub const fn is_cloudevent(self) -> bool {
        matches!(self, Self::Cloudevents | Self::CloudeventsBinary)
    }

    /// The content type of a destination that sets none.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Cloudevents => CLOUDEVENTS_TYPE,
            Self::Envelope | Self::Data | Self::CloudeventsBinary => JSON_TYPE,
        }
    }
}

/// How a destination gets its events. The signature is of the body that is sent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BodySettings {
    pub format: BodyFormat,
    /// `None`: that of the format.
    pub content_type: Option<String>,
    /// The `source` of CloudEvents; `None`: [`default_source`].
    pub source: Option<String>,
}

/// The `source` of CloudEvents for a destination that sets none.
pub fn default_source(tenant: &str) -> String {
    format!("/weir/{tenant}")
}

/// The headers that a body in binary mode adds.
pub const BINARY_HEADERS: [&str; 5] = ["ce-specversion", "ce-id", "ce-source", "ce-type", "ce-time"];

impl BodySettings {
    pub fn content_type(&self) -> &str {
        self.content_type.as_deref().unwrap_or(self.format.content_type())
    }

    pub fn source(&self, tenant: &str) -> String {
        self.source.clone().unwrap_or_else(|| default_source(tenant))
    }

    /// The bytes that are signed and sent.
    pub fn of(&self, body: &EventBody, tenant: &str) -> Bytes {
        match self.format {
            // The hot path: the body is stored in this form.
            BodyFormat::Envelope => body.bytes().clone(),
            BodyFormat::Data | BodyFormat::CloudeventsBinary => body.data(),
            BodyFormat::Cloudevents => cloudevent(body, &self.source(tenant)),
        }
    }

    /// The values of [`BINARY_HEADERS`], in their order; `None` in the other formats.
    pub fn binary_headers(&self, body: &EventBody, tenant: &str) -> Option<[String; 5]> {
        let head = body.head();
        (self.format == BodyFormat::CloudeventsBinary).then(|| {
            let texts = [head.id, head.event_type, head.timestamp].map(str::to_owned);
            let [id, event_type, time] = texts;
            ["1.0".to_owned(), id, self.source(tenant), event_type, time]
        })
    }
}

/// A CloudEvent in structured mode, with `data` byte for byte. No text in it needs an escape: the source is a URI
/// reference, and the others are of Weir's own making.
fn cloudevent(body: &EventBody, source: &str) -> Bytes {
    let (head, data) = (body.head(), body.data());
    let attributes = format!(
        r#"{{"specversion":"1.0","id":"{}","source":"{source}","type":"{}","time":"{}","datacontenttype":"application/json","data":"#,
        head.id, head.event_type, head.timestamp
    );
    let mut bytes = BytesMut::with_capacity(attributes.len() + data.len() + 1);
    bytes.put_slice(attributes.as_bytes());
    bytes.put_slice(&data);
    bytes.put_u8(b'}');
    bytes.freeze()
}

/// Whether a text is a content type: `type/subtype`, with parameters or without.
pub fn valid_content_type(text: &str) -> bool {
    let is_token =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b));
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let essence = essence.split_once('/');
    essence.is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype.trim_end_matches(' ')))
        && parameters.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && text.len() <= MAX_CONTENT_TYPE
        && text.trim() == text
}

/// Whether a text may be the `source` of a CloudEvent: a URI reference, which has no quotation mark and no backslash.
pub fn valid_source(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte);
    (1..=MAX_SOURCE).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{id::EventId, time::Timestamp};

    const DATA: &str = "{\"b\": 1.0e2, \"a\":  [] }";

    fn event(data: &str) -> (String, EventBody) {
        let id = EventId::new(Timestamp::from_secs(1), 7);
        (id.to_string(), EventBody::freeze(id, "video.created", Timestamp::from_secs(1), data))
    }

    fn settings(format: BodyFormat) -> BodySettings {
        BodySettings { format, ..BodySettings::default() }
    }

    #[test]
    fn an_envelope_is_sent_as_it_is_stored_and_data_byte_for_byte() {
        let (_, body) = event(DATA);
        assert_eq!(settings(BodyFormat::Envelope).of(&body, "acme"), body.bytes());
        for format in [BodyFormat::Data, BodyFormat::CloudeventsBinary] {
            assert_eq!(settings(format).of(&body, "acme"), DATA.as_bytes());
        }
        // A JSON string keeps its quotation marks: the body is the JSON value, whatever its content type.
        let text = BodySettings { content_type: Some("text/plain".to_owned()), ..settings(BodyFormat::Data) };
        assert_eq!(text.of(&event("\"hello\"").1, "acme"), "\"hello\"".as_bytes());
    }

    #[test]
    fn a_structured_cloudevent_has_the_required_attributes_and_the_data_byte_for_byte() {
        let (id, body) = event(DATA);
        let sent = settings(BodyFormat::Cloudevents).of(&body, "acme");
        let text = std::str::from_utf8(&sent).unwrap();
        assert!(text.ends_with(&format!(r#""data":{DATA}}}"#)), "{text}");
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        let attributes =
            ["specversion", "id", "source", "type", "time", "datacontenttype"].map(|name| json[name].as_str().unwrap());
        assert_eq!(
            attributes,
            ["1.0", &id, "/weir/acme", "video.created", "1970-01-01T00:00:01.000Z", "application/json"]
        );
        let own = BodySettings { source: Some("https://a.example/x".to_owned()), ..settings(BodyFormat::Cloudevents) };
        let json: serde_json::Value = serde_json::from_slice(&own.of(&body, "acme")).unwrap();
        assert_eq!(json["source"], "https://a.example/x");
    }

    #[test]
    fn a_binary_cloudevent_has_its_attributes_in_headers() {
        let (id, body) = event(DATA);
        let headers = settings(BodyFormat::CloudeventsBinary).binary_headers(&body, "acme").unwrap();
        assert_eq!(headers, ["1.0", &id, "/weir/acme", "video.created", "1970-01-01T00:00:01.000Z"]);
        assert_eq!(settings(BodyFormat::Cloudevents).binary_headers(&body, "acme"), None);
    }

    #[test]
    fn settings_are_read_back_and_an_absent_member_is_the_default() {
        assert_eq!(serde_json::from_str::<BodySettings>("{}").unwrap(), BodySettings::default());
        for format in BodyFormat::ALL {
            let stored = serde_json::to_string(&settings(format)).unwrap();
            assert!(stored.contains(format.as_str()), "{stored}");
            assert_eq!(serde_json::from_str::<BodySettings>(&stored).unwrap(), settings(format));
            assert_eq!(BodyFormat::parse(format.as_str()), Some(format));
        }
    }

    #[test]
    fn content_types_and_sources_are_valid_in_headers_and_in_json() {
        for good in ["text/plain", "application/vnd.acme+json", "application/json; charset=utf-8"] {
            assert!(valid_content_type(good), "{good}");
        }
        for bad in ["", "text", "/", "text/", "text/plain\r\nx: y", "a b/c", " text/plain", "text/plain; x=\u{e9}"] {
            assert!(!valid_content_type(bad), "{bad}");
        }
        assert!(!valid_content_type(&format!("text/{}", "x".repeat(MAX_CONTENT_TYPE))));
        for good in ["/", "urn:acme:orders", "https://a.example/?x=%20#y", "mailto:a@b.example"] {
            assert!(valid_source(good), "{good}");
        }
        for bad in ["", "a b", "\"", "\\", "\u{e9}", "a\n"] {
            assert!(!valid_source(bad), "{bad}");
        }
    }
}
