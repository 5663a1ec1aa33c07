"""A stub of Buck2's API for rules, with types: as much of it as the rules use.

It follows the documentation and the source of github.com/facebook/buck2 at commit 13baa8a1d181428b17e1873fcb129793fa36d463:
`app/buck2_action_impl/src/context`, `app/buck2_build_api/src/interpreter/rule_defs` and
`app/buck2_interpreter_for_build/src/attrs/attrs_global.rs`. It fails where Buck2 fails: at an argument of a wrong type, a file
that is written twice or never, an input that no action wrote yet, two actions of one category without identifiers.
"""

_NO_DEFAULT = "<no default>"

# --- values

Label = record(
    cell = str,
    cell_root = typing.Any,
    name = str,
    package = str,
    raw_target = typing.Callable,
)

CellRoot = record(cell = str)

OutputArtifact = record(path = str)

Artifact = record(
    as_output = typing.Callable,
    basename = str,
    extension = str,
    is_source = bool,
    owner = typing.Any,
    path = str,
    short_path = str,
)

CmdArgs = record(
    delimiter = str | None,
    format = str | None,
    hidden = typing.Any,
    items = list,
    parent = int,
)

TransitiveSet = record(traverse = typing.Callable)

Dependency = record(get = typing.Callable, label = Label)

AnalysisContext = record(actions = typing.Any, attrs = typing.Any, label = Label)

# --- providers. A value is made by calling the record.

Provider = typing.Any

RunInfo = record(args = field(typing.Any, []))

WorkerInfo = record(
    concurrency = field(int | None, None),
    exe = typing.Any,
    supports_bazel_remote_persistent_worker_protocol = field(bool, False),
)

WorkerRunInfo = record(
    exe = field(typing.Any, []),
    remote_worker = field(WorkerInfo | None, None),
    worker = field(WorkerInfo | None, None),
)

DefaultInfo = record(
    default_output = field(Artifact | None, None),
    default_outputs = field(list[Artifact] | None, None),
    other_outputs = field(list, []),
    sub_targets = field(dict[str, list], {}),
)

ValidationSpec = record(
    name = str,
    optional = field(bool, False),
    validation_result = Artifact,
)

ValidationInfo = record(validations = list[ValidationSpec])

ExternalRunnerTestInfo = record(
    command = list,
    env = field(dict[str, typing.Any], {}),
    labels = field(list[str], []),
    run_from_project_root = field(bool, True),
    type = str,
    use_project_relative_paths = field(bool, True),
)

def provider_field(type, default = _NO_DEFAULT):
    return field(type) if default == _NO_DEFAULT else field(type, default)

def provider(fields, doc = ""):
    return record(**fields)

def transitive_set(args_projections = {}):
    return struct(kind = "transitive_set")

# --- attributes

def _attr(kind, default, **more):
    return struct(default = default, kind = kind, more = more)

def _string(default = _NO_DEFAULT, doc = ""):
    return _attr("string", default)

def _bool(default = _NO_DEFAULT, doc = ""):
    return _attr("bool", default)

def _int(default = _NO_DEFAULT, doc = ""):
    return _attr("int", default)

def _source(allow_directory = False, default = _NO_DEFAULT, doc = ""):
    return _attr("source", default)

def _label(default = _NO_DEFAULT, doc = ""):
    return _attr("label", default)

def _dep(providers = [], default = _NO_DEFAULT, doc = ""):
    return _attr("dep", default, providers = providers)

def _list(inner, /, default = _NO_DEFAULT, doc = ""):
    return _attr("list", default, inner = inner)

def _option(inner, /, default = _NO_DEFAULT, doc = ""):
    return _attr("option", default, inner = inner)

def _dict(key, value, sorted = False, default = _NO_DEFAULT, doc = ""):
    return _attr("dict", default, key = key, value = value)

def _one_of(*inner, default = _NO_DEFAULT, doc = ""):
    return _attr("one_of", default, inner = inner)

attrs = struct(
    bool = _bool,
    dep = _dep,
    dict = _dict,
    exec_dep = _dep,
    int = _int,
    label = _label,
    list = _list,
    one_of = _one_of,
    option = _option,
    source = _source,
    string = _string,
    toolchain_dep = _dep,
)

def _is_label(raw):
    return isinstance(raw, str) and (raw.startswith(":") or "//" in raw)

def _fits(attr, raw):
    """Whether a value has the form of an attribute; for `one_of`."""
    if attr.kind == "dep":
        return _is_label(raw)
    return isinstance(raw, str)

def _coerce(attr, raw, target, place):
    kind = attr.kind
    if kind in ("string", "bool", "int"):
        if not isinstance(raw, {"bool": bool, "int": int, "string": str}[kind]):
            fail("{}: {} is no {}".format(place, repr(raw), kind))
        return raw
    if kind == "option":
        return None if raw == None else _coerce(attr.more["inner"], raw, target, place)
    if kind == "list":
        if not isinstance(raw, list):
            fail("{}: {} is no list".format(place, repr(raw)))
        return [_coerce(attr.more["inner"], item, target, place) for item in raw]
    if kind == "dict":
        if not isinstance(raw, dict):
            fail("{}: {} is no dict".format(place, repr(raw)))
        return {
            _coerce(attr.more["key"], key, target, place): _coerce(attr.more["value"], value, target, place)
            for key, value in raw.items()
        }
    if kind == "one_of":
        for inner in attr.more["inner"]:
            if _fits(inner, raw):
                return _coerce(inner, raw, target, place)
        fail("{}: {} fits none of the types".format(place, repr(raw)))
    if not isinstance(raw, str):
        fail("{}: {} is no string".format(place, repr(raw)))
    if kind == "label":
        return _parse_label(raw, target)
    if kind == "dep":
        dependency = target.resolve(raw, target)
        for needed in attr.more["providers"]:
            if dependency.get(needed) == None:
                fail("{}: {} lacks a provider".format(place, raw))
        return dependency
    if _is_label(raw):
        outputs = target.resolve(raw, target).get(DefaultInfo).default_outputs
        if len(outputs) != 1:
            fail("{}: {} has {} outputs, a source has one".format(place, raw, len(outputs)))
        return outputs[0]
    return _artifact(target, raw, source = True)

# --- labels and files

def _parse_label(raw, target):
    cell, _, rest = raw.rpartition("//")
    if not "//" in raw:
        rest = target.package + raw
    package, _, name = rest.partition(":")
    return make_label(cell.removeprefix("@") or target.cell, package, name)

def make_label(cell, package, name):
    def raw_target():
        return "{}//{}:{}".format(cell, package, name)

    return Label(
        cell = cell,
        cell_root = CellRoot(cell = cell),
        name = name,
        package = package,
        raw_target = raw_target,
    )

def _artifact(target, short_path, source = False):
    prefix = target.package + "/" if target.package else ""
    path = prefix + short_path if source else "buck-out/v2/art/{}{}/__{}__/{}".format(prefix, "HASH", target.name, short_path)
    if source and target.cell != "root":
        path = "{}/{}".format(target.cell, path)
    if path in target.artifacts:
        return target.artifacts[path]

    def as_output():
        if source:
            fail("a source cannot be an output: " + path)
        return OutputArtifact(path = path)

    basename = short_path.rpartition("/")[2]
    target.artifacts[path] = Artifact(
        as_output = as_output,
        basename = basename,
        extension = "." + basename.rpartition(".")[2] if "." in basename else "",
        is_source = source,
        owner = None if source else "{}//{}:{}".format(target.cell, target.package, target.name),
        path = path,
        short_path = short_path,
    )
    return target.artifacts[path]

# --- command lines

def cmd_args(*items, hidden = [], delimiter: str | None = None, format: str | None = None, parent: int = 0):
    return CmdArgs(delimiter = delimiter, format = format, hidden = hidden, items = list(items), parent = parent)

def _render(value, found):
    """Returns the words of a value, and adds its files to `found`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) or isinstance(value, tuple):
        return [word for item in value for word in _render(item, found)]
    if isinstance(value, Artifact):
        found["inputs"].append(value)
        return [value.path]
    if isinstance(value, OutputArtifact):
        found["outputs"].append(value.path)
        return [value.path]
    if isinstance(value, CellRoot):
        return ["" if value.cell == "root" else value.cell]
    if isinstance(value, RunInfo):
        return _render(value.args, found)
    if not isinstance(value, CmdArgs):
        fail("not an argument: " + repr(value))
    words = _render(value.items, found)
    for _ in range(value.parent):
        words = [word.rpartition("/")[0] for word in words]
    if value.format != None:
        words = [value.format.replace("{}", word) for word in words]
    if value.delimiter != None:
        words = [value.delimiter.join(words)]
    _render(value.hidden, found)
    return words

def render(value):
    """The words of a command line."""
    return _render(value, {"inputs": [], "outputs": []})

# --- analysis

def _traverse(value, children):
    def traverse(ordering: str = "preorder"):
        if ordering != "postorder":
            fail("the stub knows only postorder")
        groups = []
        for group in [group for child in children for group in child.traverse(ordering = ordering)]:
            if group not in groups:
                groups.append(group)
        return groups + ([value] if value != None else [])

    return traverse

def _actions(target, log):
    declared, bound, names, written = {}, {}, {}, {}

    def declare_output(name: str, /, *, dir: bool = False, has_content_based_path: bool | None = None):
        artifact = _artifact(target, name)
        if artifact.path in declared:
            fail("declared twice: " + name)
        declared[artifact.path] = has_content_based_path
        return artifact

    def bind(path):
        if path not in declared:
            fail("not declared: " + path)
        if path in bound:
            fail("written twice: " + path)
        bound[path] = True

    def write(name: str, content, /, *, is_executable: bool = False, has_content_based_path: bool | None = None):
        artifact = declare_output(name, has_content_based_path = has_content_based_path)
        bind(artifact.path)
        written[artifact.path] = render(content)
        return artifact

    def tset(definition, /, *, value = None, children = []):
        return TransitiveSet(traverse = _traverse(value, children))

    def run(
            arguments,
            /,
            *,
            category: str,
            identifier: str | None = None,
            env: dict[str, str] = {},
            exe: RunInfo | WorkerRunInfo | None = None,
            weight: int = 1):
        action = "{} {}".format(category, identifier or "")
        if action in names:
            fail("two actions are called '{}' in {}".format(action, target.name))
        names[action] = True
        if weight < 1:
            fail("`weight` must be a positive integer")
        found = {"inputs": [], "outputs": []}
        tool = _render(exe.exe if isinstance(exe, WorkerRunInfo) else exe, found)
        words = []
        for word in _render(arguments, found):
            words.extend(written[word[1:]] if word.startswith("@") and word[1:] in written else [word])
        for file in found["inputs"]:
            if not file.is_source and file.path in declared and file.path not in bound:
                fail("no action writes {} before it is read".format(file.path))
        outputs = sorted({path: True for path in found["outputs"]}.keys())
        if not outputs:
            fail("expected at least one output artifact, did not get any")
        for path in outputs:
            bind(path)
        log.append({
            "argv": words,
            "category": category,
            "content_based": [declared[path] for path in outputs],
            "env": dict(env),
            "identifier": identifier,
            "inputs": sorted({file.path: True for file in found["inputs"]}.keys()),
            "outputs": outputs,
            "target": "//{}:{}".format(target.package, target.name),
            "tool": tool,
            "weight": weight,
            "worker": render(exe.worker.exe) if isinstance(exe, WorkerRunInfo) and exe.worker else None,
        })

    def finish():
        for path in declared:
            if path not in bound:
                fail("no action writes " + path)

    return struct(declare_output = declare_output, run = run, tset = tset, write = write), finish

def dependency(label, providers):
    """What a rule gets for a dependency."""
    whole = []
    for each in providers:
        if isinstance(each, DefaultInfo):
            if each.default_output != None and each.default_outputs != None:
                fail("Cannot specify both `default_output` and `default_outputs`.")
            outputs = [each.default_output] if each.default_output != None else (each.default_outputs or [])
            each = DefaultInfo(
                default_outputs = outputs,
                other_outputs = each.other_outputs,
                sub_targets = each.sub_targets,
            )
        whole.append(each)
    if not [each for each in whole if isinstance(each, DefaultInfo)]:
        fail("no DefaultInfo")

    def get(wanted):
        found = [each for each in whole if isinstance(each, wanted)]
        return found[0] if found else None

    return Dependency(get = get, label = label)

def rule(impl, attrs, doc = "", is_toolchain_rule = False):
    key = record_rule()

    def call(*, stub_analyze = None, **given):
        if stub_analyze == None:
            for name in given:
                if name not in attrs and name not in ("name", "visibility"):
                    fail("no attribute `{}`".format(name))
            for name, attr in attrs.items():
                if name not in given and attr.default == _NO_DEFAULT:
                    fail("missing attribute `{}` of {}".format(name, given["name"]))
            record_target(key, given)
            return None
        if stub_analyze == "key":
            return key
        target, log = stub_analyze
        values = {}
        for name, attr in attrs.items():
            raw = given[name] if name in given else attr.default
            values[name] = _coerce(attr, raw, target, "{}.{}".format(target.name, name))
        actions, finish = _actions(target, log)
        context = AnalysisContext(
            actions = actions,
            attrs = struct(**values),
            label = make_label(target.cell, target.package, target.name),
        )
        providers = impl(context)
        finish()
        return dependency(context.label, providers)

    return call

def _export_file_impl(ctx):
    return [DefaultInfo(default_output = ctx.attrs.src)]

# A rule of Buck2's prelude. It is the first rule.
export_file = rule(
    impl = _export_file_impl,
    attrs = {"src": attrs.source()},
)

def make_target(cell, package, name, resolve, artifacts):
    """A target that is analyzed. `artifacts` are all files by path, so that equal files are equal."""
    return struct(artifacts = artifacts, cell = cell, name = name, package = package, resolve = resolve)
