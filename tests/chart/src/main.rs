//! Writes the generated files of `deploy/`.

use std::process::ExitCode;

use anyhow::Context as _;

fn main() -> ExitCode {
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("chart: {cause:#}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> anyhow::Result<()> {
    let root = oarlock_chart::root();
    let folder = root.join(oarlock_chart::GENERATED);
    // A file of an earlier generator must not stay.
    let _ = std::fs::remove_dir_all(&folder);
    for (path, text) in oarlock_chart::files()? {
        let path = root.join(path);
        let parent = path.parent().context("a file has no folder")?;
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{} is up to date", root.join("deploy").display());
    Ok(())
}
