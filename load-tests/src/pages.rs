//! The report of a series of runs: `report.json`, and `report.html` with its charts in one self-contained file.

mod html;
mod pictures;

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use weir_core::Timestamp;

use crate::judge::Judgement;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) began: Timestamp,
    pub(crate) runs: Vec<Run>,
}

/// The machine on which the figures were measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) os: String,
    pub(crate) harness: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) set_up: String,
    pub(crate) passed: bool,
    pub(crate) judgement: Judgement,
}

impl Machine {
    pub(crate) fn this() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            harness: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// The folder of `--report`, or `target/load/NAME`. Makes it.
pub(crate) fn report_folder(given: Option<&Path>, name: &str) -> anyhow::Result<PathBuf> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        // This program is in `target/release`.
        None => std::env::current_exe()?.with_file_name("../load").join(name),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.canonicalize()?)
}

impl Report {
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string(self)?;
        for (name, text) in [("report.json", json + "\n"), ("report.html", html::page(self)?)] {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Reads a report from a file or from its folder.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = if path.is_dir() { path.join("report.json") } else { path.to_owned() };
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a report", file.display()))
    }
}
