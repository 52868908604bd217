//! The user of this process, and the user of programs that must not run as root.

use std::process::Command;

/// The numeric ids of a user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub user: u32,
    pub group: u32,
}

impl Account {
    /// The account of a program that refuses to run as root: its own account if the package made one, otherwise
    /// `nobody`.
    pub fn unprivileged(name: &str) -> Option<Self> {
        [name, "nobody"].into_iter().find_map(|user| Some(Self { user: id(&["-u", user])?, group: id(&["-g", user])? }))
    }
}

pub fn is_root() -> bool {
    id(&["-u"]) == Some(0)
}

fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_means_nobody() {
        assert_eq!(Account::unprivileged("no-such-user-here"), Account::unprivileged("nobody"));
        assert_ne!(Account::unprivileged("nobody").map(|account| account.user), Some(0));
    }
}
