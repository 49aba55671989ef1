//! Copies one image, and says how long that took and how much memory: `copy SOURCE TARGET`.

use std::time::Instant;

use anyhow::{Context as _, bail};
use oarlock_registry::{Destination, ImageCopy, Registries};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, target] = arguments.as_slice() else { bail!("copy SOURCE TARGET") };
    let copy = ImageCopy {
        source: source.clone(),
        source_credentials: Vec::new(),
        hosts: ["auth.docker.io", "production.cloudflare.docker.com"].map(str::to_owned).to_vec(),
        target: Destination { image: target.clone(), ..Destination::default() },
        otherwise: "otherwise".to_owned(),
        source_base: None,
        runs: None,
        available: false,
    };
    let registries = Registries::new()?;
    let with_roots = peak()?;
    // References are parsed by a large expression, once in a process.
    let nothing = ImageCopy { target: Destination::default(), ..copy.clone() };
    let _ = registries.copy(&nothing, |_| {}).await;
    let with_references = peak()?;
    let began = Instant::now();
    let copied = registries.copy(&copy, |_| {}).await?;
    let seconds = began.elapsed().as_secs_f64();
    println!("{copied:?} in {seconds:.2} s");
    println!("at most {} of memory: {with_roots} with the roots, {with_references} with references parsed", peak()?);
    Ok(())
}

/// The most memory that this process has had.
fn peak() -> anyhow::Result<String> {
    let status = std::fs::read_to_string("/proc/self/status").context("there is no /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    Ok(line.trim().to_owned())
}
