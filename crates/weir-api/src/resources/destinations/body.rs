//! What the body of a destination's requests is, as it is set and shown.

use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    body::{
        BodyFormat, BodySettings, CLOUDEVENTS_TYPE, MAX_CONTENT_TYPE, MAX_SOURCE, valid_content_type, valid_source,
    },
    destination::Settings,
};

use crate::{
    errors::Errors,
    readers::{
        fields::object,
        texts::{one_of, text},
    },
};

text! {
    /// The form of a body.
    #[schema(
        as = BodyFormat, value_type = String, pattern = "^(envelope|data|cloudevents|cloudevents-binary)$",
        example = "data"
    )]
    pub(crate) struct BodyFormatText(BodyFormat);
    parse = |text| {
        let names = BodyFormat::ALL.iter().map(|format| format.as_str());
        one_of(text, names).map(|name| BodyFormat::parse(&name).unwrap_or_default())
    };
}

text! {
    /// A media type, with parameters or without. The pattern describes a part of them.
    #[schema(
        as = ContentType, pattern = "^[a-z]{1,20}/[a-z0-9.+-]{1,60}(; charset=utf-8)?$",
        example = "application/vnd.acme+json"
    )]
    pub(crate) struct ContentTypeText(String);
    parse = |text| match valid_content_type(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("must be a media type of at most {MAX_CONTENT_TYPE} bytes, such as `application/json`")),
    };
}

text! {
    /// A URI reference that names where events come from.
    #[schema(
        as = CloudEventSource, pattern = "^[A-Za-z0-9._~:/?#@!$&'()*+,;=-]{1,255}$", example = "https://example.com/orders"
    )]
    pub(crate) struct SourceText(String);
    parse = |text| match valid_source(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("must be a URI reference of 1 to {MAX_SOURCE} bytes, such as `https://example.com/orders`")),
    };
}

object! {
    /// What the body of a request is. The signature is of the body that is sent.
    pub(crate) struct BodyRequest {
        /// `envelope`: `{"id", "type", "timestamp", "data"}`. `data`: the `data` of the event, byte for byte as it was
        /// posted: a JSON value, whatever `content_type` says, so a string keeps its quotation marks.
        /// `cloudevents`: a CloudEvent 1.0 in structured mode, with the `data` byte for byte. `cloudevents-binary`: the
        /// `data` alone, and the attributes in `ce-…` headers.
        #[schema(default = "envelope")]
        format: Option<BodyFormatText>,
        /// `application/json` if absent, and `application/cloudevents+json` for `cloudevents`, which may only add
        /// parameters to it.
        content_type: Option<ContentTypeText>,
        /// The `source` of CloudEvents; `/weir/<tenant>` if absent.
        source: Option<SourceText>,
    }
    check = Self::check;
}

impl BodyRequest {
    /// Only CloudEvents have a source, and the structured mode has one media type.
    pub(crate) fn keywords() -> Value {
        let null = json!({"type": "null"});
        json!({"anyOf": [
            {"properties": {"format": {"enum": ["envelope", "data", null]}, "source": &null}},
            {"properties": {"format": {"const": "cloudevents-binary"}}, "required": ["format"]},
            {"properties": {"format": {"const": "cloudevents"}, "content_type": &null}, "required": ["format"]},
        ]})
    }

    pub(super) fn format(&self) -> BodyFormat {
        self.format.as_ref().map_or(BodyFormat::Envelope, |format| format.0)
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        if errors.has(&format!("{at}/format")) {
            return;
        }
        if self.source.is_some() && !self.format().is_cloudevent() {
            errors.add(format!("{at}/source"), "must be omitted: only CloudEvents have a source");
        }
        let essence = self.content_type.as_ref().and_then(|text| text.0.split(';').next()).map(str::trim);
        let is_other = essence.is_some_and(|essence| !essence.eq_ignore_ascii_case(CLOUDEVENTS_TYPE));
        if self.format() == BodyFormat::Cloudevents && is_other {
            let detail = format!("must be `{CLOUDEVENTS_TYPE}` for `cloudevents`, with parameters or without");
            errors.add(format!("{at}/content_type"), detail);
        }
    }
}

impl From<BodyRequest> for BodySettings {
    /// A content type that is the default is not kept, so settings that mean the same are equal.
    fn from(request: BodyRequest) -> Self {
        let format = request.format();
        let content_type = request.content_type.map(|text| text.0).filter(|text| text != format.content_type());
        Self { format, content_type, source: request.source.map(|text| text.0) }
    }
}

pub(crate) fn view(settings: &Settings) -> types::Body {
    let body = &settings.body;
    types::Body {
        format: body.format.as_str().to_owned(),
        content_type: body.content_type().to_owned(),
        source: body.format.is_cloudevent().then(|| body.source(&settings.tenant)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::texts::tests::assert_pattern_is_accepted;

    #[test]
    fn every_text_that_a_pattern_describes_is_accepted() {
        assert_pattern_is_accepted::<BodyFormatText>();
        assert_pattern_is_accepted::<ContentTypeText>();
        assert_pattern_is_accepted::<SourceText>();
    }
}
