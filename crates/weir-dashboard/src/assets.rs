//! Style, scripts and icon, compiled in. The name of each contains the hash of its content, so browsers may keep it for
//! ever; after an upgrade the pages name other files.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    response::{IntoResponse, Response},
};
use http::header;

use crate::{fingerprint::fingerprint, refusal::Refusal};

/// The folder of the vendored files has their origin and their licences.
const HTMX: &[u8] = include_bytes!("../assets/vendor/htmx.min.js");
const SSE: &[u8] = include_bytes!("../assets/vendor/hx-sse.min.js");

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let style = [include_str!("../assets/app.css"), weir_chart::STYLE].concat();
    vec![
        Asset::new("app.css", "text/css; charset=utf-8", style.into_bytes()),
        Asset::new("app.js", "text/javascript; charset=utf-8", include_bytes!("../assets/app.js").to_vec()),
        // One file: htmx starts right after its own script, and does not see an extension that comes later.
        Asset::new("htmx.js", "text/javascript; charset=utf-8", [HTMX, b"\n", SSE].concat()),
        Asset::new("icon.svg", "image/svg+xml", include_bytes!("../assets/icon.svg").to_vec()),
    ]
});

struct Asset {
    /// `app.css`
    name: &'static str,
    /// `0a1b2c3d4e5f6071-app.css`
    file: String,
    media_type: &'static str,
    content: bytes::Bytes,
}

impl Asset {
    fn new(name: &'static str, media_type: &'static str, content: Vec<u8>) -> Self {
        let hash = fingerprint(&content);
        Self { name, file: format!("{hash}-{name}"), media_type, content: content.into() }
    }
}

/// The path of an asset below the base: `/assets/0a1b2c3d4e5f6071-app.css`.
pub(crate) fn path(name: &str) -> String {
    let file = ASSETS.iter().find(|asset| asset.name == name).map_or(name, |asset| &asset.file);
    format!("/assets/{file}")
}

pub(crate) async fn serve(Path(file): Path<String>) -> Result<Response, Refusal> {
    let asset = ASSETS.iter().find(|asset| asset.file == file);
    let asset = asset.ok_or_else(|| Refusal::not_found("There is no such file."))?;
    let headers =
        [(header::CONTENT_TYPE, asset.media_type), (header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
    Ok((headers, asset.content.clone()).into_response())
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    /// The vendored files are exactly those of the package `htmx.org` 4.0.1.
    #[test]
    fn the_vendored_scripts_are_pinned_by_hash() {
        let hex = |content: &[u8]| Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(HTMX), "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130");
        assert_eq!(hex(SSE), "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103");
    }

    #[test]
    fn htmx_comes_with_its_extension() {
        let script = ASSETS.iter().find(|asset| asset.name == "htmx.js").unwrap();
        assert!(script.content.starts_with(HTMX) && script.content.ends_with(SSE));
        assert_eq!(ASSETS.iter().filter(|asset| asset.media_type.starts_with("text/javascript")).count(), 2);
    }

    #[test]
    fn the_name_of_an_asset_has_the_hash_of_its_content() {
        let path = path("app.css");
        let hash = path.strip_prefix("/assets/").and_then(|file| file.strip_suffix("-app.css")).unwrap();
        assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{path}");
    }

    #[test]
    fn style_and_script_are_small() {
        let style = include_str!("../assets/app.css");
        let script = include_str!("../assets/app.js");
        assert!(script.lines().count() < 300, "{} lines", script.lines().count());
        assert!(style.len() < 24_000, "{} bytes", style.len());
    }
}
