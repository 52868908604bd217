//! Puts the parts of a script together so that a call costs little.
//!
//! Redis runs the whole source in each call, and so creates each function of it anew. For each variable of the same
//! function that the new one uses, Lua walks through all that are used so far. This took a third of a call for one slot.
//! So definitions that an operation does not use are left out, and everything behind the base is one function: what it
//! uses of the base is found without a walk.

use std::collections::HashSet;

/// A definition, or a line outside of one. Without names it is kept.
struct Item {
    names: HashSet<String>,
    text: String,
}

/// The function of the base that ends each script that has its block: what is still to be written.
const AT_END: &str = "write_moves";

/// `base`: what every script begins with. Definitions of functions begin and end in the first column.
pub(super) fn assemble(base: &[&str], rest: &[&str]) -> String {
    let (base, rest) = (items(base), items(rest));
    let mut unused: Vec<&Item> = base.iter().chain(&rest).filter(|item| !item.names.is_empty()).collect();
    let statements = base.iter().chain(&rest).filter(|item| item.names.is_empty());
    let mut used: HashSet<String> = statements.flat_map(|item| words(&item.text)).map(str::to_owned).collect();
    loop {
        let (newly, others): (Vec<_>, Vec<_>) = unused.into_iter().partition(|item| !item.names.is_disjoint(&used));
        unused = others;
        if newly.is_empty() {
            break;
        }
        used.extend(newly.iter().flat_map(|item| words(&item.text)).map(str::to_owned));
    }
    let is_used = |item: &&Item| item.names.is_empty() || !item.names.is_disjoint(&used);
    let text = |items: &[Item]| items.iter().filter(is_used).map(|item| item.text.as_str()).collect::<String>();
    let (base_text, rest_text) = (text(&base), text(&rest));
    if used.contains(AT_END) {
        format!("{base_text}local answer = (function()\n{rest_text}end)()\n{AT_END}()\nreturn answer\n")
    } else {
        format!("{base_text}return (function()\n{rest_text}end)()\n")
    }
}

fn items(parts: &[&str]) -> Vec<Item> {
    let mut lines = parts
        .iter()
        .flat_map(|part| part.lines())
        .filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("--"))
        .peekable();
    let mut items = Vec::new();
    while let Some(line) = lines.next() {
        let mut item = Item { names: HashSet::new(), text: format!("{line}\n") };
        let function = line.strip_prefix("local function ").or_else(|| line.strip_prefix("function "));
        if let Some(head) = function {
            // Those of a table are known by their field.
            let name = head.split('(').next().and_then(|name| name.rsplit('.').next());
            item.names.extend(name.map(str::to_owned));
        } else if line.starts_with("local ") && !line.contains('=') && lines.peek() == Some(&"do") {
            item.names.extend(words(line).skip(1).map(str::to_owned));
        }
        if !item.names.is_empty() && !line.ends_with(" end") {
            for line in lines.by_ref() {
                item.text += &format!("{line}\n");
                if line == "end" {
                    break;
                }
            }
        }
        items.push(item);
    }
    items
}

/// The words of a text, with those in strings: they only keep more than is used.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_that_are_not_used_are_left_out() {
        let base = "-- A comment of unused_in_base.\nlocal known = {}\nlocal function used_in_base()\n  return 1\nend\n\n\
                    local function unused_in_base()\n  return used_in_base()\nend\n";
        let rest = "local one, other\ndo\n  function one()\n    return used_in_base()\n  end\n  other = one\nend\n\
                    local unused\ndo\n  unused = one\nend\nfunction TABLE.unused_field() return unused() end\n\
                    function TABLE.field() return other() end\nreturn TABLE.field()\n";
        let expected = "local known = {}\nlocal function used_in_base()\n  return 1\nend\nreturn (function()\n\
                        local one, other\ndo\n  function one()\n    return used_in_base()\n  end\n  other = one\nend\n\
                        function TABLE.field() return other() end\nreturn TABLE.field()\nend)()\n";
        assert_eq!(assemble(&[base], &[rest]), expected);
    }
}
