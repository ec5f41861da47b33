//! `sigma reload`, `upgrade`, `reopen` and `stop`: they find the process by its configuration, even an
//! invalid one, and print the result.

use std::fs;
use std::process::{Command, Output};

use sigma_testkit::{Gateway, Origin, until};

use crate::{PATIENCE, SIGMA, catch_all, nodes};

/// A command that names a gateway by its configuration.
fn order(gateway: &Gateway, name: &str) -> Output {
    let mut command = Command::new(SIGMA);
    command.arg(name).arg("-c").arg(gateway.dir().join("sigma.yaml"));
    command.env("RUNTIME_DIRECTORY", gateway.dir().join("run")).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The default pid files of the folder of a gateway.
fn pid_files(gateway: &Gateway) -> Vec<String> {
    let files = fs::read_dir(gateway.dir().join("run")).into_iter().flatten().flatten();
    files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_broken_file_is_no_obstacle_to_a_stop() {
    let origin = Origin::echo("a").unwrap();
    let config = catch_all("", &nodes(&[&origin]), "");
    let mut gateway = Gateway::start(SIGMA, &config).unwrap();
    assert_eq!(pid_files(&gateway).len(), 1, "{}", gateway.stderr());
    for broken in ["routes:\n  - path: /x\nnonsense: 1\n", "routes: [\n  }"] {
        gateway.rewrite(broken).unwrap();
        let output = order(&gateway, "reload");
        assert_eq!(output.status.code(), Some(1), "{}", out(&output));
        assert!(out(&output).contains("the old configuration stays in force"), "{}", out(&output));
        let output = order(&gateway, "reopen");
        assert!(out(&output).contains("opens its log files again"), "{}", out(&output));
    }
    let output = order(&gateway, "stop");
    assert_eq!(out(&output), format!("process {} finishes its open requests and then ends\n", gateway.pid()));
    assert!(gateway.wait(PATIENCE).unwrap().success());
    assert!(pid_files(&gateway).is_empty(), "the file goes with its process");
    let output = order(&gateway, "stop");
    assert!(out(&output).contains("so its process is unknown"), "{}", out(&output));
    assert!(out(&output).contains("--pid"), "{}", out(&output));
}

/// The number of a dead process may be another one's.
#[test]
fn a_file_of_a_dead_process_names_no_process() {
    let origin = Origin::echo("a").unwrap();
    let mut gateway = Gateway::start(SIGMA, &catch_all("", &nodes(&[&origin]), "")).unwrap();
    gateway.kill().unwrap();
    let files = pid_files(&gateway);
    assert_eq!(files.len(), 1);
    // A process that runs, and is no gateway.
    let path = gateway.dir().join("run").join(&files[0]);
    fs::write(&path, format!("{}\n", std::process::id())).unwrap();
    let output = order(&gateway, "stop");
    assert_eq!(output.status.code(), Some(1), "{}", out(&output));
    assert!(out(&output).contains("so its process is unknown"), "{}", out(&output));
    gateway.start_again().unwrap();
    assert_eq!(out(&order(&gateway, "reload")), "reloaded\n");
}

#[test]
fn a_reload_and_an_upgrade_print_their_result() {
    let origin = Origin::echo("a").unwrap();
    let with = |settings: &str| catch_all(settings, &nodes(&[&origin]), "");
    let gateway = Gateway::start(SIGMA, &with("pid_file: \"{dir}/sigma.pid\"")).unwrap();
    assert!(pid_files(&gateway).is_empty(), "the configuration names another file");
    assert_eq!(out(&order(&gateway, "reload")), "reloaded\n");
    gateway.rewrite(&with("pid_file: \"{dir}/sigma.pid\"\nstatus: { address: \"{status}\" }")).unwrap();
    assert_eq!(out(&order(&gateway, "reload")), "reloaded; needs a restart: status\n");
    let first = gateway.pid();
    let output = order(&gateway, "upgrade");
    assert!(until(PATIENCE, || gateway.pid() != first), "{}", gateway.stderr());
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!("upgraded: pid {first} → {}, version {version}\n", gateway.pid());
    assert_eq!(out(&output), expected);
    // Without `pid_file` the next process has the default file, and the former one goes.
    gateway.rewrite(&with("")).unwrap();
    let upgraded =
        Command::new(SIGMA).args(["upgrade", "--pid", &gateway.pid().to_string()]).output().unwrap();
    assert!(upgraded.status.success(), "{}", out(&upgraded));
    assert!(until(PATIENCE, || pid_files(&gateway).len() == 1), "{}", gateway.stderr());
    assert!(until(PATIENCE, || !gateway.dir().join("sigma.pid").exists()), "{}", gateway.stderr());
    assert_eq!(out(&order(&gateway, "reload")), "reloaded\n");
    assert!(order(&gateway, "stop").status.success());
}

/// A reload finds a new file of a pattern, and a problem names its file.
#[test]
fn a_reload_reads_included_files() {
    let origin = Origin::echo("a").unwrap();
    let route = |path: &str| {
        format!("routes:\n- uri: {path}\n  upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }}\n", origin.port())
    };
    let config = catch_all("", &nodes(&[&origin]), "");
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let folder = gateway.dir().join("conf.d");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), route("/a")).unwrap();
    let listener = format!("listeners: [\"{}\"]\n", gateway.address());
    gateway.rewrite(&format!("{listener}include: [conf.d/*.yaml]\n")).unwrap();
    let output = order(&gateway, "reload");
    assert!(output.status.success(), "{}", out(&output));
    let status = |path: &str| gateway.connect().unwrap().get(path).unwrap().status();
    assert_eq!((status("/a"), status("/b")), (200, 404));
    fs::write(folder.join("b.yaml"), route("/b")).unwrap();
    let output = order(&gateway, "reload");
    assert!(output.status.success(), "{}", out(&output));
    assert_eq!((status("/a"), status("/b")), (200, 200));
    fs::write(folder.join("b.yaml"), "\nroutes:\n- uri: ~(\n  upstream: http://127.0.0.1:1\n").unwrap();
    let output = order(&gateway, "reload");
    assert_eq!(output.status.code(), Some(1), "{}", out(&output));
    assert!(out(&output).contains("conf.d/b.yaml: line 3: routes[0].uri"), "{}", out(&output));
    assert_eq!(status("/b"), 200);
}

#[test]
fn a_folder_is_served_without_a_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("index.html"), "hello").unwrap();
    let address = format!("127.0.0.1:{}", sigma_testkit::free_port());
    let mut child = Command::new(SIGMA)
        .args(["serve", "--spa", "--listen", &address])
        .arg(dir.path())
        .current_dir(dir.path())
        .spawn()
        .unwrap();
    let get = |path: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    };
    let served = until(PATIENCE, || get("/any/view").is_some_and(|text| text.ends_with("hello")));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(served);
}
