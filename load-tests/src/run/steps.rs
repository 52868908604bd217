//! Runs the steps of a scenario at their times and records their effects on limits, pauses and processes.

use anyhow::{Context, bail};
use hyper::Method;
use serde_json::{Value, json};

use super::{Ids, Target, api::Api, fleet::Fleet, receivers::Receivers};
use crate::{
    clock::{Timeline, now},
    recording::{Fault, Home, KeyLimitChange, LimitChange, Mark, Pause, Recording},
    scenario::{Action, ReceiverBehavior, Step, key_limits_in, limits_in, merge, seconds},
};

/// Everything that the steps act on.
pub(super) struct StepRunner<'a> {
    pub(super) timeline: Timeline,
    pub(super) api: &'a Api,
    pub(super) receivers: &'a [Receivers],
    pub(super) ids: &'a Ids,
    pub(super) target: &'a mut Target,
    pub(super) recording: Recording,
}

impl StepRunner<'_> {
    pub(super) async fn play(&mut self, steps: &[Step]) -> anyhow::Result<()> {
        for (number, step) in steps.iter().enumerate() {
            let at = self.timeline.began() + seconds(step.at_s);
            tokio::time::sleep(at.saturating_duration_since(now())).await;
            self.act(&step.action).await.with_context(|| format!("step {} at {} s", number + 1, step.at_s))?;
        }
        Ok(())
    }

    async fn act(&mut self, action: &Action) -> anyhow::Result<()> {
        let from = self.timeline.now();
        // The charts mark the beginning of each step.
        self.recording.marks.push(Mark { what: describe(action), at: from });
        match action {
            Action::Edit { to, settings } => self.edit(to, settings).await?,
            Action::Override { to, rate_limits, for_s } => self.override_limits(to, rate_limits, *for_s).await?,
            Action::EditLimitGroup { limit_group, rate_limits } => {
                self.edit_limit_group(limit_group, rate_limits).await?;
            }
            Action::Move { of, limit_group } => self.move_into(of, limit_group.as_deref()).await?,
            Action::Pause(group) => {
                self.edit(group, &json!({"paused": true})).await?;
                // Sends before the answer are not breaches, and neither are sends after the request to resume.
                let pause = Pause { from: self.timeline.now(), until: weir_core::Timestamp::MAX };
                self.group(group)?.pauses.push(pause);
            }
            Action::Resume(group) => {
                if let Some(pause) = self.group(group)?.pauses.last_mut() {
                    pause.until = from;
                }
                self.edit(group, &json!({"paused": false})).await?;
            }
            Action::Behavior { of, behavior } => {
                let group =
                    self.recording.groups.iter().position(|group| group.name == *of).context("no such group")?;
                self.receivers[group].set_behavior(*behavior);
                if *behavior == ReceiverBehavior::Refuse {
                    // An answer may be lost when its connection is cut.
                    self.recording.faults.push(Fault { from, until: self.timeline.now() });
                }
            }
            Action::Kill { role, down_s } => {
                let member = self.fleet()?.kill(role).await?;
                // The records of its latest sends may be lost, which explains duplicates.
                if sends(role) {
                    self.recording.faults.push(Fault { from, until: self.timeline.now() });
                }
                tokio::time::sleep(seconds(*down_s)).await;
                self.fleet()?.start_again(member).await?;
            }
            Action::Stop { role, for_s } => {
                self.fleet()?.signal(role, "STOP").await?;
                tokio::time::sleep(seconds(*for_s)).await;
                self.fleet()?.signal(role, "CONT").await?;
            }
            Action::RestartRedis { down_s } => {
                self.fleet()?.redis()?.kill().await?;
                tokio::time::sleep(seconds(*down_s)).await;
                self.fleet()?.redis()?.start_again().await?;
            }
            Action::HangRedis { for_s } => {
                self.fleet()?.redis()?.signal("STOP").await?;
                tokio::time::sleep(seconds(*for_s)).await;
                self.fleet()?.redis()?.signal("CONT").await?;
            }
            Action::FlushRedis => self.fleet()?.redis()?.ask("FLUSHALL").await.map(drop)?,
            Action::RestartPostgres { down_s } => {
                self.fleet()?.postgres()?.stop().await?;
                tokio::time::sleep(seconds(*down_s)).await;
                self.fleet()?.postgres()?.start_again().await?;
            }
            Action::ScaleWorkers(workers) => self.fleet()?.scale_workers(*workers as usize).await?,
            Action::Replay { of, states } => self.replay(of, states).await?,
        }
        Ok(())
    }

    fn fleet(&mut self) -> anyhow::Result<&mut Fleet> {
        match self.target {
            Target::Spawned(fleet) => Ok(fleet),
            Target::Running(_) => bail!("this step needs processes that the harness starts: --spawn"),
        }
    }

    fn group(&mut self, name: &str) -> anyhow::Result<&mut crate::recording::Group> {
        let named = self.recording.groups.iter_mut().find(|group| group.name == name);
        named.with_context(|| format!("no destinations are named {name}"))
    }

    fn members(&self, name: &str) -> Vec<usize> {
        let groups = &self.recording.groups;
        let is_member = |number: &usize| groups[self.recording.destinations[*number].group].name == name;
        (0..self.ids.destinations.len()).filter(is_member).collect()
    }

    async fn edit(&mut self, group: &str, settings: &Value) -> anyhow::Result<()> {
        let limits = limits_in(settings)?;
        for number in self.members(group) {
            let sent = self.timeline.now();
            self.api.patch(&self.ids.destinations[number], settings).await?;
            if let Some(limits) = limits.clone() {
                let change = LimitChange { sent, answered: self.timeline.now(), limits };
                self.recording.destinations[number].limits.push(change);
            }
            if settings.get("key_limits").is_some() {
                let changes = &mut self.recording.destinations[number].key_limits;
                let mut settings_now = changes.last().map_or_else(|| json!({}), |change| change.settings.clone());
                merge(&mut settings_now, settings);
                let limits = key_limits_in(&settings_now)?.unwrap_or_default();
                changes.push(KeyLimitChange { sent, answered: self.timeline.now(), settings: settings_now, limits });
            }
        }
        Ok(())
    }

    fn limit_group(&self, name: &str) -> anyhow::Result<usize> {
        let named = self.recording.limit_groups.iter().position(|group| group.name == name);
        named.with_context(|| format!("no limit group is named {name}"))
    }

    async fn edit_limit_group(&mut self, name: &str, rate_limits: &Value) -> anyhow::Result<()> {
        let number = self.limit_group(name)?;
        let settings = json!({ "rate_limits": rate_limits });
        let limits = limits_in(&settings)?.context("an edit needs limits")?;
        let sent = self.timeline.now();
        self.api.edit_limit_group(&self.ids.limit_groups[number], &settings).await?;
        let change = LimitChange { sent, answered: self.timeline.now(), limits };
        self.recording.limit_groups[number].limits.push(change);
        Ok(())
    }

    async fn move_into(&mut self, group: &str, limit_group: Option<&str>) -> anyhow::Result<()> {
        let limit_group = limit_group.map(|name| self.limit_group(name)).transpose()?;
        let settings = json!({ "limit_group": limit_group.map(|number| &self.ids.limit_groups[number]) });
        for number in self.members(group) {
            let sent = self.timeline.now();
            self.api.patch(&self.ids.destinations[number], &settings).await?;
            let home = Home { sent, answered: self.timeline.now(), limit_group };
            self.recording.destinations[number].homes.push(home);
        }
        Ok(())
    }

    /// Records the begin, and the end as it will come.
    async fn override_limits(&mut self, group: &str, rate_limits: &Value, for_s: u32) -> anyhow::Result<()> {
        let over = limits_in(&json!({ "rate_limits": rate_limits }))?.context("an override needs limits")?;
        let body = json!({"rate_limits": rate_limits, "for_s": for_s, "reason": "a scenario"});
        for number in self.members(group) {
            let sent = self.timeline.now();
            let path = format!("/v1/destinations/{}/override", self.ids.destinations[number]);
            let _: Value = self.api.ask(Method::POST, &path, &body).await?;
            let (answered, lasts) = (self.timeline.now(), seconds(for_s.into()));
            let limits = &mut self.recording.destinations[number].limits;
            let below = limits.last().map(|change| change.limits.clone()).unwrap_or_default();
            limits.push(LimitChange { sent, answered, limits: over.clone() });
            limits.push(LimitChange { sent: sent + lasts, answered: answered + lasts, limits: below });
        }
        Ok(())
    }

    async fn replay(&mut self, group: &str, states: &[String]) -> anyhow::Result<()> {
        for number in self.members(group) {
            let body = json!({"states": states, "destination": self.ids.destinations[number]});
            let _: Value = self.api.ask(Method::POST, "/v1/replays", &body).await?;
        }
        Ok(())
    }
}

/// Whether the death of a process of this role can lose the records of its latest sends. No other step can lose a
/// record: neither the death of another role or of Redis, nor a restart of PostgreSQL, which keeps all committed data.
fn sends(role: &str) -> bool {
    matches!(role, "worker" | "serve")
}

/// The label of a step in the charts.
fn describe(action: &Action) -> String {
    match action {
        Action::Edit { to, settings } => match limits_in(settings) {
            Ok(Some(limits)) if limits.is_unlimited() => format!("{to}: no limit"),
            Ok(Some(limits)) => {
                let shown = |limit: &weir_core::RateLimit| format!("{}/{}", limit.limit, limit.period);
                format!("{to}: {}", limits.as_slice().iter().map(shown).collect::<Vec<_>>().join(", "))
            }
            _ => format!("edit {to}"),
        },
        Action::Override { to, rate_limits, for_s } => {
            let settings = json!({ "rate_limits": rate_limits });
            let limits = describe(&Action::Edit { to: to.clone(), settings });
            format!("{limits} for {for_s} s")
        }
        Action::EditLimitGroup { limit_group, rate_limits } => {
            describe(&Action::Edit { to: limit_group.clone(), settings: json!({ "rate_limits": rate_limits }) })
        }
        Action::Move { of, limit_group } => format!("{of} to {}", limit_group.as_deref().unwrap_or("no group")),
        Action::Pause(group) => format!("pause {group}"),
        Action::Resume(group) => format!("resume {group}"),
        Action::Behavior { of, behavior } => {
            let behavior = format!("{behavior:?}").to_lowercase();
            format!("{of}: {}", behavior.split(' ').next().unwrap_or_default())
        }
        Action::Kill { role, .. } => format!("kill {role}"),
        Action::Stop { role, .. } => format!("stop {role}"),
        Action::RestartRedis { .. } => "restart Redis".to_owned(),
        Action::FlushRedis => "flush Redis".to_owned(),
        Action::HangRedis { .. } => "hang Redis".to_owned(),
        Action::RestartPostgres { .. } => "restart PostgreSQL".to_owned(),
        Action::ScaleWorkers(workers) => format!("{workers} workers"),
        Action::Replay { of, .. } => format!("replay {of}"),
    }
}
