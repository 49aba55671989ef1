//! The processor architectures of images and releases.
//!
//! The module knows the names of an architecture and the tools that build for it. A machine of one architecture can
//! build for the other with the cross compiler of Debian.

use std::process::Command;

use anyhow::bail;
use clap::ValueEnum;

/// A processor architecture of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    /// 64-bit x86
    Amd64,
    /// 64-bit Arm
    Arm64,
}

impl Architecture {
    /// Returns the architecture of this machine.
    ///
    /// # Errors
    ///
    /// If no image has the architecture.
    pub(crate) fn of_this_machine() -> anyhow::Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("no image is built on a machine with the architecture {other}: use x86_64 or aarch64"),
        }
    }

    /// Returns the name in images, such as `arm64`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the name of the kernel, such as `aarch64`. The names of files and tools have it.
    pub(crate) const fn machine(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Returns the target of static programs.
    pub(crate) fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.machine())
    }

    /// Returns the name of a tool of binutils or GCC for this architecture, such as `aarch64-linux-gnu-strip`.
    pub(crate) fn tool(self, name: &str) -> String {
        format!("{}-linux-gnu-{name}", self.machine())
    }

    /// Returns the compiler for C code that is linked to musl.
    pub(crate) fn c_compiler(self) -> String {
        format!("{}-linux-musl-gcc", self.machine())
    }

    /// Checks that the tools are there.
    ///
    /// # Errors
    ///
    /// If a tool is missing. The error names the packages.
    pub(crate) fn check_tools(self) -> anyhow::Result<()> {
        let tools = [self.c_compiler(), self.tool("gcc"), self.tool("ar"), self.tool("strip")];
        for tool in tools {
            if Command::new(&tool).arg("--version").output().is_err() {
                bail!("{tool} is missing: {}", self.packages());
            }
        }
        Ok(())
    }

    /// Returns how to install the tools on Debian.
    fn packages(self) -> String {
        let (name, compiler) = (self.name(), format!("gcc-{}-linux-gnu", self.machine().replace('_', "-")));
        if Self::of_this_machine().is_ok_and(|this| this == self) {
            return "install the packages gcc and musl-dev".to_owned();
        }
        format!(
            "run `dpkg --add-architecture {name} && apt-get update`, and install the packages {compiler} and musl-dev:{name}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_names_its_target_its_tools_and_their_packages() {
        let arm = Architecture::Arm64;
        assert_eq!(
            (arm.target(), arm.tool("ar"), arm.c_compiler()),
            ("aarch64-unknown-linux-musl".into(), "aarch64-linux-gnu-ar".into(), "aarch64-linux-musl-gcc".into())
        );
        let this = Architecture::of_this_machine().unwrap();
        let other = if this == arm { Architecture::Amd64 } else { arm };
        assert!(this.packages().contains("musl-dev") && !this.packages().contains("--add-architecture"));
        assert!(other.packages().contains(&format!("musl-dev:{}", other.name())));
    }
}
