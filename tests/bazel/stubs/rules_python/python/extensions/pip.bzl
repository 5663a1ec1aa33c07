"""Stands for rules_python's extension: a package for each distribution of the lock in SITE_PACKAGES, a site directory.

The targets have the files that rules_python gives them: no RECORD and no bytecode, below a directory `site-packages`.
"""

def _hub_impl(repository_ctx):
    script = repository_ctx.path(Label("//python/extensions:make_hub.py"))
    site = repository_ctx.os.environ["SITE_PACKAGES"]
    lock = repository_ctx.path(repository_ctx.attr.lock)
    done = repository_ctx.execute([repository_ctx.os.environ["PYTHON_3_11"], script, site, lock])
    if done.return_code:
        fail(done.stderr)

_hub = repository_rule(
    implementation = _hub_impl,
    attrs = {"lock": attr.label()},
    environ = ["PYTHON_3_11", "SITE_PACKAGES"],
)

def _pip_impl(module_ctx):
    for module in module_ctx.modules:
        for tag in module.tags.parse:
            _hub(name = tag.hub_name, lock = tag.uv_lock or tag.requirements_lock)

pip = module_extension(
    implementation = _pip_impl,
    tag_classes = {"parse": tag_class(attrs = {
        "hub_name": attr.string(),
        "python_version": attr.string(),
        "requirements_lock": attr.label(),
        "uv_lock": attr.label(),
    })},
)
