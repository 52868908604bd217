//! The results of a bench, topic by topic, as JSON. A new measurement of a topic replaces the last one.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{SetUp, Topic, figure::Figure, machine::Machine, picture::Sends, rig::BareCeiling};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    /// From a brief run, whose figures are not reliable.
    pub(crate) brief: bool,
    /// In the order of the page.
    pub(crate) sections: Vec<Section>,
}

/// One topic on one set-up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Section {
    pub(crate) topic: Topic,
    pub(crate) set_up: SetUp,
    /// RFC 3339.
    pub(crate) began: String,
    pub(crate) took_s: f64,
    /// Measured just before the topic.
    pub(crate) ceiling: Option<BareCeiling>,
    pub(crate) measured: Measured,
    /// Why there are no figures.
    pub(crate) failure: Option<String>,
}

/// The result of a topic.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) figures: Vec<Figure>,
    /// Remarks on the figures.
    pub(crate) remarks: Vec<String>,
    pub(crate) sends: Option<Sends>,
}

impl Measured {
    pub(crate) fn of(figures: impl IntoIterator<Item = Figure>) -> Self {
        Self { figures: figures.into_iter().collect(), ..Self::default() }
    }

    pub(crate) fn remark(mut self, remark: impl Into<String>) -> Self {
        self.remarks.push(remark.into());
        self
    }

    /// Adds the breaches that the judge found during the measurement.
    pub(crate) fn judged(self, breaches: Vec<String>) -> Self {
        breaches.into_iter().fold(self, |measured, breach| measured.remark(format!("The judge: {breach}.")))
    }
}

impl Results {
    /// Reads earlier results; empty when there is no file.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} has another format; remove it", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        write(path, &(serde_json::to_string_pretty(self)? + "\n"))
    }

    pub(crate) fn put(&mut self, section: Section) {
        self.sections.retain(|of| (of.topic, of.set_up) != (section.topic, section.set_up));
        self.sections.push(section);
        self.sections.sort_by_key(|section| (section.topic, section.set_up));
    }
}

/// Writes a file and creates its folders.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(topic: Topic, set_up: SetUp, began: &str) -> Section {
        let (began, measured) = (began.to_owned(), Measured::default());
        Section { topic, set_up, began, took_s: 1.0, ceiling: None, measured, failure: None }
    }

    #[test]
    fn a_new_measurement_of_a_topic_replaces_the_last_one() {
        let mut results = Results::default();
        results.put(section(Topic::Overload, SetUp::Embedded, "1"));
        results.put(section(Topic::Latency, SetUp::Scaled, "2"));
        results.put(section(Topic::Latency, SetUp::Embedded, "3"));
        results.put(section(Topic::Overload, SetUp::Embedded, "4"));
        let began: Vec<_> = results.sections.iter().map(|section| section.began.as_str()).collect();
        assert_eq!(began, ["3", "2", "4"]);
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/results.json");
        assert!(Results::read(&path).unwrap().sections.is_empty());
        let mut results = Results::default();
        results.put(section(Topic::Idle, SetUp::Scaled, "2026-11-22T06:00:00.000Z"));
        results.write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap().sections[0].began, "2026-11-22T06:00:00.000Z");
    }
}
