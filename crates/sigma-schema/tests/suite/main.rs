//! The public test suite of JSON Schema (JSON-Schema-Test-Suite), for the drafts that schemas may have: drafts 4, 6 and 7,
//! and draft 2020-12 in documents of OpenAPI 3.1.
//!
//! pip fetches the suite the first time, in the sources of the Python package `jsonschema`. `known.txt` lists the
//! cases that fail, each with its reason. The list is exact: a case on it that passes fails this test.

/// Tests that need a network the first time.
mod installed {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::LazyLock;

    use serde_json::Value;
    use sigma_schema::validation::{Dialect, Reading, Sender};

    /// The cases that fail: `= draft`, then `# reason` before its cases.
    const KNOWN: &str = include_str!("known.txt");

    /// The package whose sources contain the suite, with its version and the checksum of the sources.
    const PACKAGE: &str = "jsonschema==4.26.0 \
                           --hash=sha256:0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326";
    const VERSION: &str = "4.26.0";

    /// Steps of one value; the largest takes some hundred.
    const STEPS: u64 = 100_000;

    /// The folder of the suite, made once in `target/tools`.
    static SUITE: LazyLock<PathBuf> = LazyLock::new(|| {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let tools = target.join("tools");
        let folder = tools.join(format!("json-schema-suite-{VERSION}"));
        if folder.exists() {
            return folder;
        }
        let pip = target.join("venv/bin/pip");
        assert!(pip.exists(), "pip is not installed: run `make tools`");
        std::fs::create_dir_all(&tools).expect("the folder of tools");
        let draft = tempfile::tempdir_in(&tools).expect("a folder");
        let requirements = draft.path().join("requirements");
        std::fs::write(&requirements, PACKAGE).expect("the requirements are written");
        let mut fetch = Command::new(pip);
        fetch.args(["download", "--quiet", "--no-deps", "--no-binary", "jsonschema", "--dest"]);
        run(fetch.arg(draft.path()).arg("--requirement").arg(&requirements));
        let name = format!("jsonschema-{VERSION}");
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(draft.path().join(format!("{name}.tar.gz")));
        run(unpack.arg("-C").arg(draft.path()).arg(format!("{name}/json")));
        std::fs::rename(draft.path().join(name).join("json"), &folder).expect("the suite has its place");
        folder
    });

    fn run(command: &mut Command) {
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the files below a folder, in order.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("the folder is readable");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        let inner = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
        paths.into_iter().flat_map(inner).collect()
    }

    /// Returns the number of tests, and those that fail: `file: case: test`, or `file: case` for a schema that is
    /// refused.
    fn failures(draft: &str, dialect: Dialect) -> (usize, BTreeSet<String>) {
        let folder = SUITE.join("tests").join(draft);
        let (mut count, mut failed) = (0, BTreeSet::new());
        let text = |value: &Value| value["description"].as_str().expect("a description").to_owned();
        for path in files(&folder) {
            let file = path.strip_prefix(&folder).expect("it is in the folder").with_extension("");
            let cases: Vec<Value> =
                serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
            for case in cases {
                let name = format!("{}: {}", file.display(), text(&case));
                let tests = case["tests"].as_array().expect("tests");
                count += tests.len();
                let mut reading = Reading::new(&case["schema"], dialect);
                let Ok((id, schemas)) = reading.schema("").and_then(|id| Ok((id, reading.finish()?))) else {
                    failed.insert(name);
                    continue;
                };
                let is_wrong = |test: &&Value| {
                    let outcome = schemas.check_of_stranger(id, &test["data"], STEPS);
                    Some(outcome.is_ok()) != test["valid"].as_bool()
                };
                failed.extend(tests.iter().filter(is_wrong).map(|test| format!("{name}: {}", text(test))));
            }
        }
        (count, failed)
    }

    /// Returns the cases of a draft that fail.
    fn known(draft: &str) -> BTreeSet<&'static str> {
        let begin = format!("= {draft}");
        let of_draft = KNOWN.lines().skip_while(|line| *line != begin).skip(1);
        let cases = of_draft.take_while(|line| !line.starts_with("= "));
        cases.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
    }

    #[track_caller]
    fn check(draft: &str, dialect: Dialect) {
        let (count, failed) = failures(draft, dialect);
        assert!(count > 800, "{draft} has {count} tests");
        let known = known(draft);
        let failed: BTreeSet<&str> = failed.iter().map(String::as_str).collect();
        let new: Vec<_> = failed.difference(&known).collect();
        assert!(new.is_empty(), "{draft}: these fail; mend them, or add them to known.txt: {new:#?}");
        let passed: Vec<_> = known.difference(&failed).collect();
        assert!(
            passed.is_empty(),
            "{draft}: these pass or are missing; remove them from known.txt: {passed:#?}"
        );
    }

    #[test]
    fn draft_4() {
        check("draft4", Dialect::Draft7);
    }

    #[test]
    fn draft_6() {
        check("draft6", Dialect::Draft7);
    }

    #[test]
    fn draft_7() {
        check("draft7", Dialect::Draft7);
    }

    #[test]
    fn draft_2020_12() {
        let dialect = Dialect::OpenApi { is_3_1: true, sender: Sender::Client };
        check("draft2020-12", dialect);
    }
}
