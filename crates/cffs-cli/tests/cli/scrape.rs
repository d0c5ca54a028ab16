//! The mount option `scrape=`, and the rules and the dashboard in `contrib/` that live on what it answers.

use crate::mounting::{fuse_works, mount_point, umount, wait_until};
use crate::tools::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The body of an answer; `None` if nobody answers with 200.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: here\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
}

fn families(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Names of our metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|w| w.starts_with("cffs_")).map(str::to_owned).collect()
}

#[test]
fn a_mount_answers_a_scrape_and_the_rules_and_the_dashboard_ask_for_what_it_tells() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = make_image(dir.path(), &["--data-sums"]);
    let (path, name) = mount_point(dir.path());
    let port = free_port();
    ok(&["mount", "-o", &format!("scrape={port}"), &image, &name]);
    let _mounted = Mounted(path);
    let text = get(port, "/metrics").expect("an answer");
    assert!(get(port, "/").is_none());
    assert_eq!(families(&text), families(&ok(&["stats", "--prometheus", &name])));
    assert!(text.contains(&format!("cffs_failed{{image=\"{image}\"}} 0\n")), "{text}");
    // A mirror tells of its members and their disks as well.
    let below = dir.path().join("mirror");
    fs::create_dir_all(&below).unwrap();
    let [a, b] = ["a", "b"].map(|n| below.join(n).to_str().unwrap().to_owned());
    ok(&["mkfs", "--mirror", "--data-sums", "--size", "40M", &a, &b]);
    let (mirror_path, mirror) = mount_point(&below);
    let mirror_port = free_port();
    ok(&["mount", "-o", &format!("scrape={mirror_port}"), &a, &mirror]);
    let _mirrored = Mounted(mirror_path);
    let of_mirror = get(mirror_port, "/metrics").expect("an answer");
    assert_eq!(families(&of_mirror), families(&ok(&["stats", "--prometheus", &mirror])));
    for (number, name) in [&a, &b].into_iter().enumerate() {
        let reads = format!("cffs_disk_requests_total{{image=\"{a}\",disk=\"{number}\",name=\"{name}\",member=\"");
        assert!(of_mirror.lines().any(|l| l.starts_with(&reads) && l.contains("operation=\"write\"} ")), "{of_mirror}");
    }
    assert!(!text.contains("cffs_disk_") && families(&of_mirror).is_superset(&families(&text)));
    if have(&[Need::Program("promtool")]) {
        check_metrics(&of_mirror);
    }
    // Where somebody listens already, nothing is mounted.
    let other = dir.path().join("other");
    fs::create_dir_all(&other).unwrap();
    let (_, second) = mount_point(&other);
    let other = make_image(&other, &[]);
    fails(&["mount", "-o", &format!("scrape={port}"), &other, &second], 32, &["name another port"]);
    // An address of documentation (RFC 5737), which no machine has.
    let foreign = ["mount", "-o", "scrape=192.0.2.1:9123", &other, &second];
    fails(&foreign, 32, &["192.0.2.1:9123", "does not have that address", "a port alone"]);

    let dashboard: Value = serde_json::from_slice(&fs::read(contrib("grafana/cffs.json")).unwrap()).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
    for asked in ["grafana/cffs.json", "prometheus/cffs.rules.yml"] {
        let asked = named(&fs::read_to_string(contrib(asked)).unwrap());
        let missing: Vec<&String> = asked.iter().filter(|name| !families(&of_mirror).contains(*name)).collect();
        assert!(!asked.is_empty() && missing.is_empty(), "{missing:?}");
    }
    if have(&[Need::Program("prometheus")]) {
        a_prometheus_reads_it(dir.path(), [port, mirror_port], &image);
    }
    umount(&mirror);
    umount(&name);
    // A test beside this one may have a mount namespace of its own, made when it was mounted: it lives on there as long as that.
    wait_until("nobody answers for a mount that has ended", || get(port, "/metrics").is_none());
}

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets promtool read an answer.
fn check_metrics(text: &str) {
    let mut tool = Command::new("promtool");
    tool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = tool.spawn().unwrap();
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let out = tool.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

fn a_prometheus_reads_it(dir: &Path, [port, of_mirror]: [u16; 2], image: &str) {
    let config = dir.join("prometheus.yml");
    let rules = contrib("prometheus/cffs.rules.yml").canonicalize().unwrap();
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n  - job_name: cffs\n    \
         static_configs: [{{targets: ['127.0.0.1:{port}', '127.0.0.1:{of_mirror}']}}]\n",
        rules.display()
    );
    fs::write(&config, text).unwrap();
    let own = free_port();
    let server = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("tsdb").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{own}"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Running(server);
    let query = |expression: &str| -> Option<Value> {
        let answer: Value = serde_json::from_str(&get(own, &format!("/api/v1/query?query={expression}"))?).ok()?;
        answer["data"]["result"].get(0).cloned()
    };
    // Of two mounts, the one that has no volume below.
    let space =
        |query: &dyn Fn(&str) -> Option<Value>| query("cffs_space_bytes%20unless%20on(image)%20cffs_volume_member_up");
    wait_until("the Prometheus has scraped the mount", || space(&query).is_some());
    let space = space(&query).unwrap();
    assert_eq!(space["metric"]["image"], image, "{space}");
    assert!(space["value"][1].as_str().unwrap().parse::<u64>().unwrap() > 1 << 20, "{space}");
    wait_until("it has scraped the mirror", || query("sum(cffs_disk_bytes_total)").is_some());
    assert_eq!(query("count(cffs_volume_member_up)").unwrap()["value"][1], "2");
    assert_eq!(query("up").unwrap()["value"][1], "1");
    let loaded: Value = serde_json::from_str(&get(own, "/api/v1/rules").unwrap()).unwrap();
    let rules = loaded["data"]["groups"][0]["rules"].as_array().unwrap().clone();
    assert!(rules.len() >= 9 && rules.iter().all(|r| r["health"] != "err"), "{loaded}");
}

#[test]
fn the_rules_are_what_promtool_takes_and_alert_when_they_should() {
    if !have(&[Need::Program("promtool")]) {
        return;
    }
    for words in [["check", "rules", "cffs.rules.yml"], ["test", "rules", "cffs.test.yml"]] {
        let out = Command::new("promtool").args(words).current_dir(contrib("prometheus")).output().unwrap();
        assert!(
            out.status.success(),
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
}
