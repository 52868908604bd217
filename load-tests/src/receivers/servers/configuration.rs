//! What the receivers are told: a limiter for each case, on the path of the case.

use std::{fmt::Write, path::Path};

use serde_json::json;

use super::Limited;
use crate::receivers::case::{Kind, Limit, Period};

/// The argument of the receivers in Node and Python.
pub(super) fn of_script(limited: &[Limited], port: u16) -> String {
    let limit = |(path, case): &Limited| {
        let Limit { count, .. } = case.limit;
        json!({"path": path, "limit": count, "window_s": case.limit.window().as_secs()})
    };
    json!({"port": port, "limits": limited.iter().map(limit).collect::<Vec<_>>()}).to_string()
}

/// One process, so that killing it ends nginx. The limiter stands before a server that answers 200, as before any
/// application.
pub(super) fn of_nginx(limited: &[Limited], port: u16, folder: &Path) -> String {
    let folder = folder.display();
    let (mut zones, mut locations) = (String::new(), String::new());
    for (path, case) in limited {
        let zone = format!("zone{}", path.trim_start_matches('/'));
        let unit = if case.limit.period == Period::Second { 's' } else { 'm' };
        let burst = if case.kind == Kind::NginxBurst { " burst=5" } else { "" };
        // Writing to a `String` cannot fail.
        let _ =
            writeln!(zones, "  limit_req_zone $binary_remote_addr zone={zone}:1m rate={}r/{unit};", case.limit.count);
        let _ = writeln!(
            locations,
            "    location = {path} {{ limit_req zone={zone}{burst}; proxy_pass http://unix:{folder}/application.sock; }}"
        );
    }
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {folder}/{kind};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log stderr crit;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  limit_req_status 429;\n  keepalive_requests 1000000;\n{temporary}{zones}\
         \x20 server {{ listen unix:{folder}/application.sock; return 200 ok; }}\n\
         \x20 server {{\n    listen 127.0.0.1:{port};\n{locations}  }}\n}}\n"
    )
}

/// A table of its own for each case, because a table has one window.
pub(super) fn of_haproxy(limited: &[Limited], port: u16) -> String {
    let (mut tables, mut rules) = (String::new(), String::new());
    for (path, case) in limited {
        let table = format!("table{}", path.trim_start_matches('/'));
        let (window_s, count) = (case.limit.window().as_secs(), case.limit.count);
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            tables,
            "backend {table}\n  stick-table type ip size 1k expire 10m store http_req_rate({window_s}s)"
        );
        let _ = writeln!(
            rules,
            "  http-request track-sc0 src table {table} if {{ path {path} }}\n  \
             http-request deny deny_status 429 if {{ path {path} }} {{ sc_http_req_rate(0) gt {count} }}"
        );
    }
    format!(
        "global\n  maxconn 1000\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
         {tables}frontend receiver\n  bind 127.0.0.1:{port}\n{rules}  http-request return status 200\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receivers::case::Case;

    fn limited(kind: Kind) -> Vec<Limited> {
        let cases = Case::all().into_iter().filter(|case| case.kind == kind);
        cases.take(4).enumerate().map(|(number, case)| (format!("/{number}"), case)).collect()
    }

    #[test]
    fn a_script_is_told_each_limit_with_its_window() {
        let told: serde_json::Value = serde_json::from_str(&of_script(&limited(Kind::Slowapi), 80)).unwrap();
        assert_eq!(told["port"], 80);
        assert_eq!(told["limits"][1], json!({"path": "/1", "limit": 10, "window_s": 1}));
        assert_eq!(told["limits"][3], json!({"path": "/3", "limit": 60, "window_s": 60}));
    }

    #[test]
    fn nginx_limits_each_path_by_a_zone_of_its_own() {
        let text = of_nginx(&limited(Kind::Nginx), 80, Path::new("/tmp/x"));
        assert!(text.contains("zone=zone1:1m rate=10r/s;") && text.contains("zone=zone3:1m rate=60r/m;"), "{text}");
        assert!(text.contains("location = /1 { limit_req zone=zone1; proxy_pass http://unix:/tmp/x/"), "{text}");
        assert!(of_nginx(&limited(Kind::NginxBurst), 80, Path::new("/x")).contains("zone=zone1 burst=5;"));
    }

    #[test]
    fn haproxy_counts_each_path_in_a_table_of_its_own() {
        let text = of_haproxy(&limited(Kind::Haproxy), 80);
        assert!(text.contains("backend table3\n  stick-table type ip size 1k expire 10m store http_req_rate(60s)\n"));
        assert!(text.contains("if { path /1 } { sc_http_req_rate(0) gt 10 }"), "{text}");
    }
}
