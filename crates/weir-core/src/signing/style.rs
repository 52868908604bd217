//! The style of a destination's signatures: the standard, a format with a name ([`PRESETS`]), or one of its own.
//!
//! A style is set by its [`StyleSpec`]: a name, and what differs from the format of that name. The API, the stores and
//! `weir verify` all read the spec with [`StyleSpec::resolve`].

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{
    format::{Algorithm, DEFAULT_HEADER, Encoding, Format, ID_HEADER, TIMESTAMP_HEADER, TimestampFormat},
    pattern::{Pattern, Placeholder},
    presets::{PRESETS, Preset, WITH_TIME},
    secret::{KeyForm, KeyKind, Secret},
};

pub const STANDARD: &str = "standard";
pub const CUSTOM: &str = "custom";
const PREFIXED: &str = "prefixed";

/// The longest separator: a character and a space.
const MAX_SEPARATOR: usize = 2;

/// How a destination's deliveries are signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureStyle {
    name: &'static str,
    format: Format,
}

/// A style as it is set, stored and shown: only what the name leaves open. A null or absent member has its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StyleSpec {
    /// The name; the standard style if absent.
    pub style: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp_header: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_header: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp_format: Option<String>,
}

/// What is wrong with a member of a [`StyleSpec`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` {detail}")]
pub struct InvalidStyle {
    pub field: &'static str,
    pub detail: String,
}

/// Why a secret cannot sign in a style.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("signs with a shared secret, and a `whsk_` secret is a private key")]
    NeedsShared,
    #[error("signs with the bytes that are encoded in a secret: `whsec_` and the base64 of 16 to 128 bytes")]
    NeedsEncoded,
    #[error("signs with a private key: `whsk_` and the base64 of its 32 bytes")]
    NeedsPrivate,
}

/// The names of all styles.
pub fn style_names() -> impl Iterator<Item = &'static str> + Clone {
    let presets = PRESETS.iter().map(|preset| preset.name);
    std::iter::once(STANDARD).chain(presets).chain([CUSTOM])
}

impl Default for SignatureStyle {
    fn default() -> Self {
        Self::standard()
    }
}

impl SignatureStyle {
    /// Standard Webhooks, in its own headers.
    pub fn standard() -> Self {
        let pattern = |text, places: &[Placeholder]| Pattern::parse(text, places).ok();
        let format = Format {
            algorithm: Algorithm::HmacSha256,
            key: KeyForm::Decoded,
            encoding: Encoding::Base64,
            timestamp_format: TimestampFormat::Unix,
            signed: pattern("{id}.{timestamp}.{body}", &Placeholder::SIGNED).unwrap_or_else(Pattern::empty),
            parts: pattern("v1,{signature}", &Placeholder::SHOWN).into_iter().collect(),
            separator: Some(" ".to_owned()),
            header: DEFAULT_HEADER.to_owned(),
            timestamp_header: Some(TIMESTAMP_HEADER.to_owned()),
            id_header: Some(ID_HEADER.to_owned()),
        };
        Self { name: STANDARD, format }
    }

    pub fn is_standard(&self) -> bool {
        self.name == STANDARD
    }

    /// The name in the API.
    pub const fn as_str(&self) -> &'static str {
        self.name
    }

    pub const fn format(&self) -> &Format {
        &self.format
    }

    /// Whether the header can hold several signatures, so that two secrets can sign during a rotation.
    pub const fn takes_several(&self) -> bool {
        self.format.separator.is_some()
    }

    /// The header that has the time of the attempt, if the header of the signature has not.
    pub fn timestamp_header(&self) -> Option<&str> {
        let own = self.format.timestamp_header.as_deref();
        own.or_else(|| (!self.format.shows(Placeholder::Timestamp)).then_some(TIMESTAMP_HEADER))
    }

    /// The header that has the id, if the header of the signature has not.
    pub fn id_header(&self) -> Option<&str> {
        let own = self.format.id_header.as_deref();
        own.or_else(|| (!self.format.shows(Placeholder::Id)).then_some(ID_HEADER))
    }

    /// Why this secret cannot sign in this style; `None` if it can.
    pub fn refusal_of(&self, secret: &Secret) -> Option<Unfit> {
        match (self.format.algorithm, secret.kind()) {
            (Algorithm::Ed25519, KeyKind::Ed25519) => None,
            (Algorithm::Ed25519, KeyKind::Shared) => Some(Unfit::NeedsPrivate),
            (_, KeyKind::Ed25519) if self.is_standard() => None,
            (_, KeyKind::Ed25519) => Some(Unfit::NeedsShared),
            (_, KeyKind::Shared) => (!secret.has_key(self.format.key)).then_some(Unfit::NeedsEncoded),
        }
    }

    /// A new secret for this style. The bytes must be random. `like` is the secret that it replaces: the standard style
    /// has two kinds.
    pub fn new_secret(&self, like: Option<&Secret>, bytes: [u8; 32]) -> Secret {
        match (self.format.algorithm, self.format.key) {
            (Algorithm::Ed25519, _) => Secret::from_random(KeyKind::Ed25519, bytes),
            (_, KeyForm::Text) => Secret::random_text(bytes),
            (_, KeyForm::Decoded) => {
                let kind = like.filter(|_| self.is_standard()).map_or(KeyKind::Shared, Secret::kind);
                Secret::from_random(kind, bytes)
            }
        }
    }

    /// What a client sets to get this style.
    pub fn spec(&self) -> StyleSpec {
        let format = &self.format;
        let style = Some(self.name.to_owned());
        let (header, timestamp_header) = (Some(format.header.clone()), format.timestamp_header.clone());
        let id_header = format.id_header.clone();
        match self.name {
            STANDARD => StyleSpec { style, ..StyleSpec::default() },
            CUSTOM => StyleSpec {
                style,
                header,
                timestamp_header,
                id_header,
                signed: Some(format.signed()),
                value: Some(format.value()),
                separator: format.separator.clone(),
                encoding: Some(format.encoding.as_str().to_owned()),
                algorithm: Some(format.algorithm.as_str().to_owned()),
                key: Some(format.key.as_str().to_owned()),
                timestamp_format: Some(format.timestamp_format.as_str().to_owned()),
            },
            _ => StyleSpec { style, header, timestamp_header, id_header, ..StyleSpec::default() },
        }
    }
}

// Written by hand: the derived implementation would take the name from the input.
impl Serialize for SignatureStyle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.spec().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SignatureStyle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let resolved = StyleSpec::deserialize(deserializer)?.resolve();
        resolved.map_err(|errors| D::Error::custom(errors.first().map(ToString::to_string).unwrap_or_default()))
    }
}

impl StyleSpec {
    /// The style of this name alone.
    pub fn named(name: &str) -> Self {
        Self { style: Some(name.to_owned()), ..Self::default() }
    }

    /// The style, or everything that is wrong with the spec; the errors are never empty.
    pub fn resolve(&self) -> Result<SignatureStyle, Vec<InvalidStyle>> {
        let name = self.style.as_deref().unwrap_or(STANDARD);
        let mut errors = Invalid::default();
        let style = match name {
            STANDARD => {
                let reason = "the `standard` style has fixed headers";
                let headers = [
                    ("header", self.header.is_some()),
                    ("timestamp_header", self.timestamp_header.is_some()),
                    ("id_header", self.id_header.is_some()),
                ];
                errors.omit(headers, reason);
                self.omit_format(STANDARD, &mut errors);
                Some(SignatureStyle::standard())
            }
            CUSTOM => self.custom(&mut errors).map(|format| SignatureStyle { name: CUSTOM, format }),
            _ => match PRESETS.iter().find(|preset| preset.name == name) {
                Some(preset) => {
                    self.omit_format(preset.name, &mut errors);
                    self.of_preset(preset, &mut errors).map(|format| SignatureStyle { name: preset.name, format })
                }
                None => {
                    let names: Vec<_> = style_names().map(|name| format!("`{name}`")).collect();
                    errors.add("style", format!("must be one of {}", names.join(", ")));
                    None
                }
            },
        };
        if let Some(style) = style.as_ref().filter(|style| !style.is_standard()) {
            check_headers(&style.format, &mut errors);
        }
        match style {
            Some(style) if errors.0.is_empty() => Ok(style),
            _ => Err(errors.0),
        }
    }

    /// Refuses what only a custom style sets.
    fn omit_format(&self, name: &str, errors: &mut Invalid) {
        let fields = [
            ("signed", self.signed.is_some()),
            ("value", self.value.is_some()),
            ("separator", self.separator.is_some()),
            ("encoding", self.encoding.is_some()),
            ("algorithm", self.algorithm.is_some()),
            ("key", self.key.is_some()),
            ("timestamp_format", self.timestamp_format.is_some()),
        ];
        errors.omit(fields, &format!("the style `{name}` has a fixed format; `custom` has one of your own"));
    }

    fn of_preset(&self, preset: &Preset, errors: &mut Invalid) -> Option<Format> {
        // The time is in the signature, in a header of its own, or not signed.
        let is_prefixed = preset.name == PREFIXED;
        if preset.timestamp_header.is_none() && !is_prefixed {
            let reason = match preset.value.contains(Placeholder::Timestamp.as_str()) {
                true => format!("a `{}` signature contains its time", preset.name),
                false => format!("the style `{}` signs no time", preset.name),
            };
            errors.omit([("timestamp_header", self.timestamp_header.is_some())], &reason);
        }
        if preset.id_header.is_none() {
            let reason = format!("the style `{}` signs no id", preset.name);
            errors.omit([("id_header", self.id_header.is_some())], &reason);
        }
        let signed = if is_prefixed && self.timestamp_header.is_some() { WITH_TIME } else { preset.signed };
        let or_preset =
            |own: &Option<String>, default: Option<&str>| own.as_deref().or(default).map(str::to_ascii_lowercase);
        Some(Format {
            algorithm: preset.algorithm,
            key: preset.key,
            encoding: preset.encoding,
            timestamp_format: preset.timestamp_format,
            signed: errors.pattern("signed", signed, &Placeholder::SIGNED)?,
            parts: parts(preset.value, preset.separator, errors)?,
            separator: preset.separator.map(str::to_owned),
            header: or_preset(&self.header, Some(preset.header))?,
            timestamp_header: or_preset(&self.timestamp_header, preset.timestamp_header),
            id_header: or_preset(&self.id_header, preset.id_header),
        })
    }

    fn custom(&self, errors: &mut Invalid) -> Option<Format> {
        let separator = self.separator.as_deref();
        if separator.is_some_and(|separator| separator.is_empty() || separator.len() > MAX_SEPARATOR) {
            errors.add("separator", format!("must be 1 to {MAX_SEPARATOR} characters, or null"));
        }
        if !separator.unwrap_or_default().bytes().all(is_printable) {
            errors.add("separator", "must contain only printable ASCII characters".to_owned());
        }
        let signed = match &self.signed {
            None => {
                errors.add("signed", "is required for the style `custom`: for example `{timestamp}.{body}`".to_owned());
                None
            }
            Some(text) => signed(text, errors),
        };
        let parts = parts(self.value.as_deref().unwrap_or("{signature}"), separator, errors);
        let algorithm = errors.choice("algorithm", &self.algorithm, Algorithm::parse, Algorithm::ALL);
        let key = errors.choice("key", &self.key, KeyForm::parse, KeyForm::ALL);
        let encoding = errors.choice("encoding", &self.encoding, Encoding::parse, Encoding::ALL);
        let time =
            errors.choice("timestamp_format", &self.timestamp_format, TimestampFormat::parse, TimestampFormat::ALL);
        let lower = |name: &Option<String>| name.as_deref().map(str::to_ascii_lowercase);
        Some(Format {
            algorithm: algorithm.unwrap_or(Algorithm::HmacSha256),
            key: key.unwrap_or(KeyForm::Text),
            encoding: encoding.unwrap_or(Encoding::Hex),
            timestamp_format: time.unwrap_or(TimestampFormat::Unix),
            signed: signed?,
            parts: parts?,
            separator: separator.map(str::to_owned),
            header: lower(&self.header).unwrap_or_else(|| DEFAULT_HEADER.to_owned()),
            timestamp_header: lower(&self.timestamp_header),
            id_header: lower(&self.id_header),
        })
    }
}

/// What is wrong with a spec.
#[derive(Default)]
struct Invalid(Vec<InvalidStyle>);

impl Invalid {
    fn add(&mut self, field: &'static str, detail: String) {
        self.0.push(InvalidStyle { field, detail });
    }

    fn omit<const N: usize>(&mut self, fields: [(&'static str, bool); N], reason: &str) {
        for (field, is_given) in fields {
            if is_given {
                self.add(field, format!("must be omitted: {reason}"));
            }
        }
    }

    fn pattern(&mut self, field: &'static str, text: &str, places: &[Placeholder]) -> Option<Pattern> {
        Pattern::parse(text, places).map_err(|detail| self.add(field, detail)).ok()
    }

    fn choice<T>(
        &mut self,
        field: &'static str,
        text: &Option<String>,
        parse: impl Fn(&str) -> Option<T>,
        all: &[&str],
    ) -> Option<T> {
        let text = text.as_deref()?;
        let found = parse(text);
        if found.is_none() {
            let all: Vec<_> = all.iter().map(|name| format!("`{name}`")).collect();
            self.add(field, format!("must be one of {}", all.join(", ")));
        }
        found
    }
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// What is signed. Some senders sign lines, so a line feed is allowed.
fn signed(text: &str, errors: &mut Invalid) -> Option<Pattern> {
    let pattern = errors.pattern("signed", text, &Placeholder::SIGNED)?;
    if !text.bytes().all(|byte| is_printable(byte) || byte == b'\n') {
        errors.add("signed", "must contain only printable ASCII characters and line feeds".to_owned());
        return None;
    }
    // A signature that leaves the body out says nothing about it; a body twice costs a MAC twice as long.
    if pattern.count(Placeholder::Body) != 1 {
        errors.add("signed", "must contain `{body}` exactly once".to_owned());
        return None;
    }
    Some(pattern)
}

/// The parts of the header's value between its separators.
fn parts(value: &str, separator: Option<&str>, errors: &mut Invalid) -> Option<Vec<Pattern>> {
    let whole = errors.pattern("value", value, &Placeholder::SHOWN)?;
    let faults = [
        (!value.bytes().all(is_printable), "must contain only printable ASCII characters"),
        (whole.count(Placeholder::Signature) != 1, "must contain `{signature}` exactly once"),
        (whole.is_ambiguous(), "must have a text between two placeholders"),
        (value.trim() != value, "must not begin or end with a space"),
    ];
    if let Some((_, detail)) = faults.into_iter().find(|(is_fault, _)| *is_fault) {
        errors.add("value", detail.to_owned());
        return None;
    }
    let parts: Vec<&str> = match separator.filter(|separator| !separator.is_empty()) {
        Some(separator) => value.split(separator).collect(),
        None => vec![value],
    };
    let parts = parts.into_iter().map(|part| errors.pattern("value", part, &Placeholder::SHOWN));
    parts.collect()
}

/// No header has two values, and the receiver finds every value that is signed.
fn check_headers(format: &Format, errors: &mut Invalid) {
    let differ = |other: &str| format!("must differ from {other}");
    let (header, time, id) = (Some(&format.header), format.timestamp_header.as_ref(), format.id_header.as_ref());
    if time.is_some() && time == header {
        errors.add("timestamp_header", differ("the header of the signature"));
    }
    if id.is_some() && id == header {
        errors.add("id_header", differ("the header of the signature"));
    }
    if id.is_some() && id == time {
        errors.add("id_header", differ("the header of the signed time"));
    }
    let is_unix = format.timestamp_format == TimestampFormat::Unix;
    if !is_unix && time.is_some_and(|name| name == TIMESTAMP_HEADER) {
        let detail = format!("must be another header: `{TIMESTAMP_HEADER}` has unix seconds");
        errors.add("timestamp_header", detail);
    }
    let is_hidden = time.is_none() && !format.shows(Placeholder::Timestamp);
    if !is_unix && is_hidden && format.signs(Placeholder::Timestamp) {
        let detail = "is required, or `{timestamp}` in `value`: the receiver needs the signed time in this format";
        errors.add("timestamp_header", detail.to_owned());
    }
}

#[cfg(test)]
mod tests;
