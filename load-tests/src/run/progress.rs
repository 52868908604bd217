//! A progress line of a run, shown only on a terminal.

use std::{io::IsTerminal, sync::Arc, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinHandle;

use super::receivers::Arrivals;
use crate::clock::now;

const EVERY: Duration = Duration::from_millis(200);

pub(super) struct Progress(Option<(ProgressBar, JoinHandle<()>)>);

impl Progress {
    pub(super) fn start(name: &str, publish_s: f64, arrivals: Arc<Arrivals>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new((publish_s * 1_000.0) as u64);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        let (shown, began) = (bar.clone(), now());
        let ticking = tokio::spawn(async move {
            loop {
                let elapsed = now().duration_since(began);
                shown.set_position(elapsed.as_millis() as u64);
                shown.set_message(format!("{} s, {} arrived", elapsed.as_secs(), arrivals.count()));
                tokio::time::sleep(EVERY).await;
            }
        });
        Self(Some((bar, ticking)))
    }

    pub(super) fn end(self) {
        if let Some((bar, ticking)) = self.0 {
            ticking.abort();
            bar.finish_and_clear();
        }
    }
}
