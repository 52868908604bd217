//! `weir verify`: verifies one received request as a receiver should.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
    time::Duration,
};

use weir_core::{
    Clock as _,
    signing::{DEFAULT_HEADER, Key, Received, SignatureStyle, verify},
};

use crate::{
    cli::{Exit, Misuse, VerifyArgs},
    clock::SystemClock,
};

/// Ends with [`Exit::Failure`] and prints the reason if the signature is not valid.
pub(super) fn run(arguments: &VerifyArgs) -> anyhow::Result<Exit> {
    // An empty secret counts as a missing one.
    let secret = arguments.secret.as_deref().filter(|secret| !secret.is_empty());
    let secret = secret.ok_or_else(|| misuse("the secret is missing; set WEIR_VERIFY_SECRET or --secret"))?;
    // The error never repeats the text: it may be a misspelled secret.
    let key: Key = secret.trim().parse().map_err(|error| misuse(&format!("the secret {error}")))?;
    let style = style(arguments)?;
    let body = body(&arguments.body)?;

    // What the receiver got: the headers that the style needs, and the raw body.
    let received = Received {
        id: arguments.id.as_deref().unwrap_or_default(),
        unix_seconds: arguments.timestamp,
        signature: &arguments.signature,
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
    let header = || DEFAULT_HEADER.to_owned();
    let (id, time) = (arguments.id.is_some(), arguments.timestamp.is_some());
    match arguments.style.as_str() {
        "timestamped" if time => {
            Err(misuse("the timestamped style takes no --timestamp: the signature contains the time"))
        }
        "timestamped" => Ok(SignatureStyle::Timestamped { header: header() }),
        "prefixed" => Ok(SignatureStyle::Prefixed { header: header(), timestamp_header: time.then(header) }),
        _ if !id => Err(misuse("the standard style needs --id, the webhook-id header")),
        _ if !time => Err(misuse("the standard style needs --timestamp, the webhook-timestamp header")),
        _ => Ok(SignatureStyle::Standard),
    }
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
