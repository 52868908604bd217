//! The user of this process, and the user of programs that must not run as root.

use std::process::Command;

/// The numeric ids of a user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

pub(crate) fn is_root() -> bool {
    id(&["-u"]) == Some(0)
}

/// The account of a program that refuses to run as root: its own account if the package made one, otherwise `nobody`.
pub(crate) fn unprivileged(name: &str) -> Option<Account> {
    [name, "nobody"].into_iter().find_map(|user| Some(Account { user: id(&["-u", user])?, group: id(&["-g", user])? }))
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
        assert_eq!(unprivileged("no-such-user-here"), unprivileged("nobody"));
        assert_ne!(unprivileged("nobody").map(|account| account.user), Some(0));
    }
}
