//! `weir config check`: the faults of the settings, and the values that are in force.

use crate::{
    cli::CheckArgs,
    config::{Checked, ProcessRole},
    exit::Exit,
};
use weir_cli::output::{
    self, Screen,
    table::{Column, Table},
    texts::count,
};

/// Prints the values to standard output, and the faults to standard error.
pub(super) fn check(arguments: &CheckArgs) -> anyhow::Result<Exit> {
    let roles = [ProcessRole::Serve, ProcessRole::Api, ProcessRole::Scheduler, ProcessRole::Worker];
    let role = roles.into_iter().find(|role| role.name() == arguments.role).unwrap_or(ProcessRole::Serve);
    let Checked { values, faults, warnings } = Checked::of(&arguments.settings, role);
    let columns = [Column::text("setting"), Column::text("value").flexible(), Column::text("from").flexible()];
    let rows = values.into_iter().map(|value| [value.variable.into(), value.value.into(), value.source.into()]);
    output::print(&Table::new(columns).with(rows).render(Screen::of_stdout()))?;
    for warning in warnings {
        eprintln!("\nwarning: {warning}");
    }
    if faults.is_empty() {
        output::print(&format!("\nA process would start as `weir {}` with these settings.", role.name()))?;
        return Ok(Exit::Done);
    }
    eprintln!("\n{} in the settings of `weir {}`:", count(faults.len() as u64, "fault", "faults"), role.name());
    for fault in faults {
        eprintln!("- {fault}");
    }
    Ok(Exit::Misuse)
}
