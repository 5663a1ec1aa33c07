"""The repository rule huggingface_checkpoint: files of a model from a hub, each pinned by its sha256."""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "read_netrc", "use_netrc")
load(":compat.bzl", "unblocked")
load(":downloads.bzl", "check_sha256")
load(":facts.bzl", "GGUF_SUFFIX", "WEIGHTS_SUFFIXES")
load(":sized_files.bzl", "load_statement", "megabytes_of")

_SIZED_FILES = Label("//rules/private:sized_files.bzl")

_BUILD = """\
{statement}
package(default_visibility = ["//visibility:public"])

exports_files({files})

sized_files(
    name = "files",
    srcs = {files},
    megabytes = {size_of_files},
)

sized_files(
    name = "weights",
    srcs = {weights},
    megabytes = {size_of_weights},
)

filegroup(
    name = "config",
    srcs = {config},
)
"""

def _check_path(path, what):
    """Fails if a path leaves its directory, or has characters that a label cannot have."""
    for part in path.split("/"):
        if part in ["", ".", ".."]:
            fail("{} `{}` is not a relative path without `..`".format(what, path))
    for char in ["\\", ":", "\"", "\n", "{", "}"]:
        if char in path:
            fail("{} `{}` has a character that is not allowed".format(what, path))

def _logins(repository_ctx):
    """Returns the logins of the user's netrc file by host, as http_archive finds them."""
    environment = repository_ctx.os.environ
    named = repository_ctx.attr.netrc or environment.get("NETRC", "")
    if not named and "HOME" in environment and repository_ctx.path(environment["HOME"] + "/.netrc").exists:
        named = environment["HOME"] + "/.netrc"
    return read_netrc(repository_ctx, named) if named else {}

def _download(repository_ctx, files):
    """Downloads files, in Bazel 7.1 and later several at a time.

    Args:
      repository_ctx: the context of the rule.
      files: list of struct(url, path, sha256).
    """
    logins = _logins(repository_ctx)
    started = [repository_ctx.download(
        file.url,
        output = file.path,
        sha256 = file.sha256,
        auth = use_netrc(logins, [file.url], repository_ctx.attr.auth_patterns),
        **unblocked(repository_ctx)
    ) for file in files]
    for download in started:
        if hasattr(download, "wait"):
            download.wait()

def _huggingface_checkpoint_impl(repository_ctx):
    attributes = repository_ctx.attr
    folder = attributes.folder or attributes.repo.split("/")[-1]
    _check_path(folder, "the folder")
    if not attributes.files:
        fail("`files` is empty: list each file with its sha256")
    for part in ["{repo}", "{revision}", "{file}"]:
        if part not in attributes.url:
            fail("`url` has no `{}`: {}".format(part, attributes.url))
    files = []
    for name, sha256 in sorted(attributes.files.items()):
        _check_path(name, "the file")
        check_sha256(name, sha256)
        url = attributes.url.replace("{repo}", attributes.repo).replace("{revision}", attributes.revision)
        files.append(struct(url = url.replace("{file}", name), path = folder + "/" + name, sha256 = sha256))
    _download(repository_ctx, files)
    paths = [file.path for file in files]
    weights = [path for path in paths if path.endswith(tuple(WEIGHTS_SUFFIXES + [GGUF_SUFFIX]))]
    config = [path for path in paths if path not in weights]
    build = _BUILD.format(
        config = repr(config),
        files = repr(paths),
        size_of_files = megabytes_of(repository_ctx, paths),
        size_of_weights = megabytes_of(repository_ctx, weights),
        statement = load_statement(_SIZED_FILES),
        weights = repr(weights),
    )
    repository_ctx.file("BUILD", build, executable = False)

_CHECKPOINT_ATTRS = {
    "auth_patterns": attr.string_dict(
        doc = "How to send the login of a host, as `http_archive` has it: `{\"HUB\": \"Bearer <password>\"}` sends the password " +
              "of the netrc file as a token. Default: the login and the password (`Basic`).",
    ),
    "files": attr.string_dict(
        doc = "The sha256 of each file, by its path in the model's repository. Bazel downloads these files only.",
        mandatory = True,
    ),
    "folder": attr.string(
        doc = "The directory of the files, by which a manifest names them. Default: the last part of `repo`.",
    ),
    "netrc": attr.string(
        doc = "The absolute path of the netrc file with the logins of hosts. Default: what the variable `NETRC` names, or " +
              "`~/.netrc`.",
    ),
    "repo": attr.string(
        doc = "The name of the model's repository, such as `Qwen/Qwen3-0.6B`.",
        mandatory = True,
    ),
    "revision": attr.string(
        doc = "The commit, branch or tag. A commit is best: Bazel refuses a branch whose files have changed.",
        mandatory = True,
    ),
    "url": attr.string(
        doc = "The address of a file, with `{repo}`, `{revision}` and `{file}` in the places of these values. It names " +
              "your hub or your mirror; `file://` works too. There is no default.",
        mandatory = True,
    ),
}

huggingface_checkpoint = repository_rule(
    implementation = _huggingface_checkpoint_impl,
    doc = """Downloads files of a model from a hub or a mirror, each pinned by its sha256.

```starlark
load("@rules_executorch//rules:repositories.bzl", "huggingface_checkpoint")

huggingface_checkpoint(
    name = "qwen3",
    files = {
        "config.json": "...",
        "model-00001-of-00002.safetensors": "...",
        "model-00002-of-00002.safetensors": "...",
        "model.safetensors.index.json": "...",
    },
    repo = "Qwen/Qwen3-1.7B",
    revision = "...",
    url = "https://HUB/{repo}/resolve/{revision}/{file}",
)
```

With Bazel 7 and later, a MODULE.bazel file gets the rule with
`use_repo_rule("@rules_executorch//rules:repositories.bzl", "huggingface_checkpoint")`.

A program then has `weights = ["@qwen3//:weights"]` and `data = ["@qwen3//:config"]`, and its manifest names the files below
the folder: `weights: Qwen3-1.7B` and `config: Qwen3-1.7B/config.json`.

For a checkpoint that the hub gives to some users only, write `machine HUB login YOU password TOKEN` into `~/.netrc`, and
`auth_patterns = {"HUB": "Bearer <password>"}` into the target.

- `:weights`: the files with tensors, and their index. The export reads GGUF files: list them under `data`. Bazel reserves
  memory for their size: `resource_set` of `executorch_program`.
- `:config`: all other files, such as `config.json` and the tokenizer.
- `:files`: all files.
""",
    attrs = _CHECKPOINT_ATTRS,
)
