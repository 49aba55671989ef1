//! Builds images without a container engine: an OCI archive with one layer, for `ctr`, nodes and `docker load`.
//!
//! The module takes a folder and a configuration, and writes a file. The same folder gives the same bytes: entries are
//! sorted, and the archive has neither times nor owners of files.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// The parts of an image.
#[derive(Args, Debug)]
pub struct Archive {
    /// The folder with the image's root file system
    #[arg(long)]
    root: PathBuf,
    /// Name of the image, such as docker.io/library/busybox:latest
    #[arg(long)]
    name: String,
    /// Architecture of the image's programs, such as arm64
    #[arg(long, default_value = architecture())]
    architecture: String,
    /// Configuration of the image, as JSON: `{"Entrypoint": ["/oarlock"], "User": "65532:65532"}`
    #[arg(long, value_parser = parse)]
    config: Value,
    /// The file to write
    #[arg(long)]
    out: PathBuf,
}

fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text)
}

/// Writes the archive, and prints the digest of the image.
///
/// # Errors
///
/// If the folder cannot be read or has an entry that is neither file, folder nor link, or if the archive cannot be
/// written.
pub fn write(archive: &Archive) -> anyhow::Result<()> {
    let plain = layer(&archive.root)?;
    let difference = digest_of(&plain);
    let layer = Blob::new("application/vnd.oci.image.layer.v1.tar+gzip", zipped(&plain)?);
    let config = json!({
        "architecture": archive.architecture, "os": "linux", "config": archive.config,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{difference}")]},
    });
    let config = Blob::json("application/vnd.oci.image.config.v1+json", &config)?;
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config.descriptor(), "layers": [layer.descriptor()]});
    let manifest = Blob::json(MANIFEST, &manifest)?;
    let names =
        json!({"io.containerd.image.name": archive.name, "org.opencontainers.image.ref.name": tag(&archive.name)});
    let named = json!({"mediaType": MANIFEST, "digest": format!("sha256:{}", manifest.digest), "size": manifest.content.len(),
        "annotations": names});
    let index =
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [named]});
    // Older engines read only this index.
    let legacy = json!([{"Config": config.path(), "RepoTags": [archive.name], "Layers": [layer.path()]}]);
    let file = File::create(&archive.out).with_context(|| format!("cannot create {}", archive.out.display()))?;
    let mut file = Builder::new(file);
    let text = |value: &Value| serde_json::to_vec(value).context("cannot write JSON");
    add(&mut file, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    add(&mut file, "index.json", &text(&index)?)?;
    add(&mut file, "manifest.json", &text(&legacy)?)?;
    for blob in [&config, &layer, &manifest] {
        add(&mut file, &blob.path(), &blob.content)?;
    }
    file.into_inner().and_then(|mut file| file.flush()).context("cannot finish the archive")?;
    println!("{} sha256:{}", archive.name, manifest.digest);
    Ok(())
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn tag(name: &str) -> &str {
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map_or("latest", |(_, tag)| tag)
}

struct Blob {
    kind: &'static str,
    digest: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(kind: &'static str, content: Vec<u8>) -> Self {
        Self { kind, digest: digest_of(&content), content }
    }

    fn json(kind: &'static str, value: &Value) -> anyhow::Result<Self> {
        Ok(Self::new(kind, serde_json::to_vec(value).context("cannot write JSON")?))
    }

    fn descriptor(&self) -> Value {
        json!({"mediaType": self.kind, "digest": format!("sha256:{}", self.digest), "size": self.content.len()})
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }
}

fn digest_of(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the content as gzip, without a time or a name in its header.
fn zipped(content: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut zipped = GzEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(content).and_then(|()| zipped.finish()).context("cannot compress a layer")
}

fn add<W: Write>(archive: &mut Builder<W>, path: &str, content: &[u8]) -> anyhow::Result<()> {
    let mut header = header(EntryType::Regular, 0o644, content.len())?;
    archive.append_data(&mut header, path, content).with_context(|| format!("cannot write {path}"))
}

fn header(kind: EntryType, mode: u32, size: usize) -> anyhow::Result<Header> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(u64::try_from(size).context("a file is too large")?);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    Ok(header)
}

/// Returns the folder as a layer.
fn layer(root: &Path) -> anyhow::Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    append(&mut layer, root, Path::new(""))?;
    layer.into_inner().context("cannot finish a layer")
}

fn append(layer: &mut Builder<Vec<u8>>, root: &Path, below: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = root.join(below);
    let failed = || format!("cannot read {}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(failed)? {
        names.push(entry.with_context(failed)?.file_name());
    }
    names.sort();
    for name in names {
        let path = below.join(name);
        let source = root.join(&path);
        let found = fs::symlink_metadata(&source).with_context(|| format!("cannot read {}", source.display()))?;
        // The umask of the builder may have removed other bits, and the image must be the same.
        let is_executable = found.permissions().mode() & 0o111 != 0;
        let written = if found.is_dir() {
            let mode = if found.permissions().mode() & 0o1000 != 0 { 0o1777 } else { 0o755 };
            let mut header = header(EntryType::Directory, mode, 0)?;
            layer.append_data(&mut header, format!("{}/", path.display()), std::io::empty())
        } else if found.is_symlink() {
            let target = fs::read_link(&source).with_context(|| format!("cannot read {}", source.display()))?;
            layer.append_link(&mut header(EntryType::Symlink, 0o777, 0)?, &path, target)
        } else if found.is_file() {
            let content = fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
            let mode = if is_executable { 0o755 } else { 0o644 };
            layer.append_data(&mut header(EntryType::Regular, mode, content.len())?, &path, content.as_slice())
        } else {
            bail!("{} is neither file, folder nor link", source.display())
        };
        written.with_context(|| format!("cannot write {}", path.display()))?;
        if found.is_dir() {
            append(layer, root, &path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_archives_of_one_folder_are_the_same_whatever_its_times_are() {
        let folder = std::env::temp_dir().join(format!("oarlock-image-{}", std::process::id()));
        let write_once = |number: u8| {
            let root = folder.join(format!("root-{number}"));
            fs::create_dir_all(root.join("plugins")).unwrap();
            fs::write(root.join("plugins/a"), "a").unwrap();
            fs::write(root.join("b"), "b").unwrap();
            std::os::unix::fs::symlink("b", root.join("c")).unwrap();
            let out = folder.join(format!("{number}.tar"));
            let config = json!({"User": "65532:65532"});
            let (name, architecture) = ("docker.io/library/a:1".to_owned(), "arm64".to_owned());
            write(&Archive { root, name, architecture, config, out: out.clone() }).unwrap();
            fs::read(out).unwrap()
        };
        let both = [write_once(1), write_once(2)];
        fs::remove_dir_all(&folder).unwrap();
        assert!(both[0] == both[1]);
        let text = String::from_utf8_lossy(&both[0]);
        assert!(text.contains(r#""io.containerd.image.name":"docker.io/library/a:1""#), "nodes know it by its name");
    }

    #[test]
    fn the_tag_of_a_name_is_what_follows_its_last_part() {
        assert_eq!((tag("localhost:5000/a/b"), tag("localhost:5000/a/b:1.2")), ("latest", "1.2"));
    }
}
