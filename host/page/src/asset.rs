//! The files that a page loads: the style sheet, the scripts and the icon. Each address has a digest of the content, so a browser may keep
//! a file forever.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::LazyLock;

/// A file that the server must serve, with the header `Cache-Control: public, max-age=31536000, immutable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// The path, such as `/ui/assets/page.0123456789abcdef.js`.
    pub path: String,
    /// The value of the header `Content-Type`.
    pub media_type: &'static str,
    /// The content.
    pub body: &'static str,
}

/// All files.
pub(crate) struct Assets {
    pub(crate) style: Asset,
    /// idiomorph 0.8.0, as npm has it, with its licence beside it.
    pub(crate) morph: Asset,
    pub(crate) page: Asset,
    pub(crate) stream: Asset,
    pub(crate) icon: Asset,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files, with their addresses.
pub(crate) static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets {
    style: asset("style", "css", "text/css; charset=utf-8", include_str!("../assets/style.css")),
    morph: asset("idiomorph", "js", SCRIPT, include_str!("../assets/idiomorph/idiomorph.min.js")),
    page: asset("page", "js", SCRIPT, include_str!("../assets/page.js")),
    stream: asset("stream", "js", SCRIPT, include_str!("../assets/stream.js")),
    icon: asset("icon", "svg", "image/svg+xml", include_str!("../assets/icon.svg")),
});

fn asset(name: &str, ending: &str, media_type: &'static str, body: &'static str) -> Asset {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    Asset { path: format!("/ui/assets/{name}.{:016x}.{ending}", hasher.finish()), media_type, body }
}

/// Returns all files. They need no login.
pub fn assets() -> [&'static Asset; 5] {
    let Assets { style, morph, page, stream, icon } = &*ASSETS;
    [style, morph, page, stream, icon]
}

/// Returns the file with this path.
pub fn asset_at(path: &str) -> Option<&'static Asset> {
    assets().into_iter().find(|asset| asset.path == path)
}
