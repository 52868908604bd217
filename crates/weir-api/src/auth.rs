//! Who sends a request, and what the sender may do.
//!
//! A request names its sender by a key or by a session:
//!
//! - `keys`: keys from the settings of the process, and stored keys with a role and tenants.
//! - `session`: the signed token that a browser gets for a key; `cookie`: how the browser keeps the token.
//! - `caller`: the sender, with its rights and its name in the activity log; `access`: who may use a route.
//! - `same_origin`: refuses requests that a page of another site makes a browser send.
//! - `throttle`: slows down those who try wrong keys; `address`: from where they come, also behind proxies.
//!
//! If the settings have any key, every path under `/v1` needs a key or a session, except `/v1/session`. Otherwise the
//! server listens only on loopback, and a request without a key is an admin. Health, metrics and the documentation need
//! no key: they show no data of tenants.

pub(crate) mod access;
mod address;
mod caller;
mod cookie;
mod digest;
mod keys;
mod public_url;
pub(crate) mod same_origin;
mod session;
mod throttle;

pub use address::{RemoteAddress, TrustedProxies};
pub use caller::LastSender;
pub(crate) use caller::{Caller, Credential, Sharer};
pub(crate) use cookie::SessionCookie;
pub(crate) use digest::digest;
pub use keys::{KeyRing, SettingKeys};
pub(crate) use keys::{NoCaller, Trial};
pub use public_url::{InvalidPublicUrl, PublicUrl};

/// Whether a path needs a key or a session. The login needs none, and neither does the logout: it must also remove a
/// cookie that is no longer valid.
pub(crate) fn is_guarded(path: &str) -> bool {
    (path == "/v1" || path.starts_with("/v1/")) && path != "/v1/session"
}
