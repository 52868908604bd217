//! `weir verify`: verifies one received request as a receiver should.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
    time::Duration,
};

use weir_core::{
    Clock as _,
    signing::{CUSTOM, Key, Placeholder, Received, SignatureStyle, StyleSpec, verify},
};

use crate::{
    cli::VerifyArgs,
    clock::SystemClock,
    exit::{Exit, Misuse},
};

/// Ends with [`Exit::Failure`] and prints the reason if the signature is not valid.
pub(super) fn run(arguments: &VerifyArgs) -> anyhow::Result<Exit> {
    // An empty secret counts as a missing one.
    let secret = arguments.secret.as_deref().filter(|secret| !secret.is_empty());
    let secret = secret.ok_or_else(|| misuse("the secret is missing; set WEIR_VERIFY_SECRET or --secret"))?;
    let style = style(arguments)?;
    // The error never repeats the text: it may be a misspelled secret.
    let key = Key::parse(secret.trim(), &style).map_err(|error| misuse(&format!("the secret {error}")))?;
    let body = body(&arguments.body)?;

    // What the receiver got: the headers that the style needs, and the raw body.
    let received = Received {
        id: arguments.id.as_deref(),
        timestamp: arguments.timestamp.as_deref(),
        signature: &arguments.signature,
        url: arguments.url.as_deref().unwrap_or_default(),
        body: &body,
    };
    let tolerance = Duration::from_secs(arguments.tolerance_s.into());
    // A signed time must be within the tolerance of the clock of this machine.
    Ok(match verify(&key, &style, &received, SystemClock::start().wall(), tolerance) {
        Ok(()) => {
            println!("valid");
            Exit::Done
        }
        Err(rejection) => {
            println!("not valid: {rejection}");
            Exit::Failure
        }
    })
}

/// The signature style, if its required arguments are given and no other ones.
fn style(arguments: &VerifyArgs) -> Result<SignatureStyle, Misuse> {
    let mut spec = match &arguments.format {
        Some(json) => {
            let spec: StyleSpec =
                serde_json::from_str(json).map_err(|error| misuse(&format!("--format is not valid JSON: {error}")))?;
            StyleSpec { style: spec.style.or_else(|| Some(CUSTOM.to_owned())), ..spec }
        }
        None => StyleSpec::named(&arguments.style),
    };
    // This style signs the time only if the destination has a header for it; its name does not matter here.
    if arguments.style == "prefixed" && arguments.timestamp.is_some() {
        spec.timestamp_header = Some("timestamp".to_owned());
    }
    let style = spec.resolve().map_err(|errors| {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        misuse(&format!("--format: {}", errors.join("; ")))
    })?;
    let (name, format) = (style.as_str(), style.format());
    let needs = |place, is_given: bool| format.signs(place) && !format.shows(place) && !is_given;
    if needs(Placeholder::Id, arguments.id.is_some()) {
        let header = style.id_header().unwrap_or_default();
        return Err(misuse(&format!("the {name} style needs --id, the {header} header")));
    }
    if needs(Placeholder::Timestamp, arguments.timestamp.is_some()) {
        let header = style.timestamp_header().unwrap_or_default();
        return Err(misuse(&format!("the {name} style needs --timestamp, the {header} header")));
    }
    if needs(Placeholder::Url, arguments.url.is_some()) {
        return Err(misuse(&format!("the {name} style needs --url, the URL of the destination")));
    }
    if format.shows(Placeholder::Timestamp) && arguments.timestamp.is_some() {
        return Err(misuse(&format!("the {name} style takes no --timestamp: the signature contains the time")));
    }
    Ok(style)
}

fn body(from: &Path) -> Result<Vec<u8>, Misuse> {
    let read = if from == Path::new("-") {
        let mut body = Vec::new();
        io::stdin().lock().read_to_end(&mut body).map(|_| body)
    } else {
        fs::read(from)
    };
    read.map_err(|error| misuse(&format!("cannot read the body from {} (--body): {error}", from.display())))
}

fn misuse(message: &str) -> Misuse {
    Misuse(message.to_owned())
}
