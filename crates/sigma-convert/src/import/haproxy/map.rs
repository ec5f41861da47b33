//! Backends by name: `%[req.hdr(host),lower,map(FILE,default)]`.

use super::super::source::Files;
use super::acl::{self, file_patterns};
use super::expr::Expr;
use super::sample::{self, Variables};

/// A backend and the requests that it gets.
pub(super) struct Entry {
    pub condition: Expr,
    pub value: String,
}

/// Reads the name of a backend; entries are in the order in which they match.
pub(super) fn read(name: &str, variables: &Variables, files: &dyn Files) -> Result<Vec<Entry>, String> {
    let (before, rest) = name.split_once("%[").ok_or("The name has no expression.")?;
    let (inner, after) = rest.rsplit_once(']').ok_or("The expression is not closed.")?;
    let calls = sample::calls(inner)?;
    let Some((last, _)) = calls.split_last().filter(|(last, _)| last.name.starts_with("map")) else {
        return Err("A backend name from the request needs a map.".to_owned());
    };
    // The expression before the map, as it is written.
    let cut = inner.rfind(",map").ok_or("The map has no key.")?;
    let key = sample::read(&inner[..cut], variables)?;
    let variable = key.variable.clone().ok_or("The key of the map has no variable.")?;
    let path = last.args.first().ok_or("The map has no file.")?;
    let mut pairs: Vec<(String, String)> = file_patterns(path, files)?
        .iter()
        .filter_map(|line| line.split_once(char::is_whitespace))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect();
    let kind = last.name.trim_start_matches("map").trim_start_matches('_');
    if kind == "beg" {
        // The longest key wins.
        pairs.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
    }
    let mut entries = Vec::new();
    for (pattern, value) in pairs {
        let escaped = regex::escape(&pattern);
        let regex = match kind {
            "" | "str" => format!("^{escaped}$"),
            "beg" => format!("^{escaped}"),
            "end" => format!("{escaped}$"),
            "sub" => escaped,
            "dom" => format!("(?:^|[/?.:]){escaped}(?:[/?.:]|$)"),
            "dir" => format!("(?:^|[/?]){escaped}(?:[/?]|$)"),
            "reg" => pattern,
            other => return Err(format!("The map `map_{other}` has no counterpart.")),
        };
        regex::Regex::new(&regex).map_err(|_| "A pattern of the map is not supported.")?;
        let condition = acl::variable_matches(&variable, &regex, key.lowered);
        entries.push(Entry { condition, value: format!("{before}{value}{after}") });
    }
    if let Some(default) = last.args.get(1) {
        entries.push(Entry { condition: Expr::True, value: format!("{before}{default}{after}") });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::super::super::source::MemoryFiles;
    use super::*;

    #[test]
    fn maps_become_conditions() {
        let mut files = MemoryFiles::default();
        files.files.insert("h.map".to_owned(), "# c\na.test web\nb.test api # x\n".to_owned());
        let entries =
            read("bk_%[req.hdr(host),lower,map(h.map,web)]", &Variables::new(), &files).expect("entries");
        let values: Vec<&str> = entries.iter().map(|entry| entry.value.as_str()).collect();
        assert_eq!(values, ["bk_web", "bk_api # x", "bk_web"]);
        assert_eq!(entries[0].condition.vars(), Some(serde_json::json!(["http_host", "~*", "^a\\.test$"])));
        assert_eq!(entries[2].condition, Expr::True);
    }
}
