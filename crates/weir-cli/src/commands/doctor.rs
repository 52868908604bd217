//! `weir doctor`: what is wrong with a running installation, with the cause and the next step of each finding.
//!
//! A problem is what keeps Weir from its work; it makes the exit code 1. A note is what a person should know: mostly a
//! receiver that cannot take what it should. `weir status` has the same exit code.

pub(super) mod clocks;
mod evidence;
mod faults;
mod finding;
mod findings;
mod groups;
mod receivers;

use serde::Serialize;

pub(super) use self::evidence::Evidence;
use self::{
    finding::{Finding, Severity},
    findings::findings,
};
use super::Call;
use crate::{
    exit::Exit,
    output::{
        self, Screen,
        texts::{clean, count, fitted},
    },
};

/// The diagnosis in JSON.
#[derive(Debug, Serialize)]
struct Diagnosis<'a> {
    /// `healthy`, `notes` or `problems`.
    verdict: &'static str,
    findings: &'a [Finding],
}

/// The exit code of a verdict, and how many problems it has.
pub(super) fn judged(evidence: &Evidence) -> (Exit, usize) {
    verdict(&findings(evidence))
}

fn verdict(found: &[Finding]) -> (Exit, usize) {
    let problems = found.iter().filter(|finding| finding.severity == Severity::Problem).count();
    (if problems == 0 { Exit::Done } else { Exit::Failure }, problems)
}

pub(super) async fn run(call: &Call) -> anyhow::Result<Exit> {
    let evidence = Evidence::gather(call).await?;
    let found = findings(&evidence);
    let (exit, problems) = verdict(&found);
    let verdict = match (problems, found.len()) {
        (0, 0) => "healthy",
        (0, _) => "notes",
        _ => "problems",
    };
    if call.json {
        output::print(&serde_json::to_string_pretty(&Diagnosis { verdict, findings: &found })?)?;
    } else {
        output::print(&text(&found, problems, &evidence.looked_at(), call.screen))?;
    }
    Ok(exit)
}

fn text(found: &[Finding], problems: usize, looked_at: &str, screen: Screen) -> String {
    let notes = found.len() - problems;
    let verdict = match (problems, notes) {
        (0, 0) => "Nothing is wrong.".to_owned(),
        (0, notes) => format!("Weir works. {} for you:", count(notes as u64, "note", "notes")),
        (problems, 0) => format!("{} found:", count(problems as u64, "problem", "problems")),
        (problems, notes) => {
            let notes = count(notes as u64, "note", "notes");
            format!("{} and {notes} found:", count(problems as u64, "problem", "problems"))
        }
    };
    let findings: String = found.iter().map(|finding| one(finding, screen)).collect();
    // People read it in a file, too.
    let columns = screen.width.unwrap_or(Screen::USUAL_WIDTH);
    fitted(&format!("{verdict}\n{findings}\nLooked at: {looked_at}."), Some(columns))
}

fn one(finding: &Finding, screen: Screen) -> String {
    let (mark, colour) = match finding.severity {
        Severity::Problem => ("problem", "\u{1b}[31m"),
        Severity::Note => ("note", "\u{1b}[33m"),
    };
    let mark = if screen.colours { format!("{colour}{mark}\u{1b}[0m") } else { mark.to_owned() };
    format!("\n{mark}: {}\n  Next: {}\n", clean(&finding.found), clean(&finding.next_step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_has_its_next_step_and_fits_80_columns() {
        let found = |severity| Finding {
            severity,
            subject: "store",
            found:
                "the store (postgres) does not answer, so that no event can be accepted and nothing is sent at present"
                    .to_owned(),
            next_step:
                "start PostgreSQL, or correct WEIR_DATABASE_URL, and then look at the log of the processes with \
                        `journalctl --unit weir` for what they say"
                    .to_owned(),
        };
        let found = [found(Severity::Problem), found(Severity::Note)];
        let text = text(&found, 1, "the store", Screen { width: Some(80), ..Screen::PLAIN });
        assert!(text.starts_with("1 problem and 1 note found:\n\nproblem: the store"), "{text}");
        assert!(text.contains("Next: start PostgreSQL") && text.ends_with("Looked at: the store."), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("\n    of the processes with"), "it goes on below itself: {text}");
    }
}
