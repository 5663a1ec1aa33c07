"""The verbs that people use, one in each module, with the functions `add` and `run` of `etbuild.cli`."""

from itertools import chain

GROUPS = {
    "set up": {
        "init": "etbuild init --huggingface checkpoint",
        "targets": "etbuild targets",
        "doctor": "etbuild doctor",
        "completion": 'eval "$(etbuild completion bash)"',
    },
    "build": {
        "validate": "etbuild validate model.yaml",
        "plan": "etbuild plan model.yaml",
        "build": "etbuild build model.yaml -o out",
        "watch": "etbuild watch model.yaml -o out",
        "explain": "etbuild explain old out",
        "lock": "etbuild lock out net.lock.json",
        "cache": "etbuild cache info",
        "affected": "etbuild affected --since origin/main models/net.yaml",
    },
    "look at a program": {
        "inspect": "etbuild inspect out/net.pte",
        "diff": "etbuild diff old out",
        "profile": "etbuild profile model.yaml forward",
        "sizes": "etbuild sizes bazel-bin/apps",
        "sbom": "etbuild sbom out",
    },
    "run and test": {
        "run": "etbuild run out/net.pte forward '[[1, 2]]'",
        "generate": 'etbuild generate model.yaml "Once upon"',
        "test": "etbuild test model.yaml",
        "bench": "etbuild bench out/net.pte --against old/net.pte",
        "bundle": "etbuild bundle model.yaml",
        "ci-summary": "etbuild ci-summary out --before old",
    },
    "ship": {
        "package": "etbuild package out -o net.oci",
        "push": "etbuild push net.oci registry.example.com/net:v1",
        "pull": "etbuild pull registry.example.com/net:v1 -o programs",
        "verify": "etbuild verify net.oci",
        "history": "etbuild history registry.example.com/net",
        "delta": "etbuild delta net.oci registry.example.com/net:v2 -o update",
        "apply": "etbuild apply update programs",
        "selected-ops": "etbuild selected-ops out/net.pte -o selected.yaml",
        "kernels": "etbuild kernels selected.yaml -o kernels",
        "cpp": "etbuild cpp out -o src",
    },
}
"""The verbs by what they are for, in the order of `etbuild --help`, each with an example. `etbuild.cli` has the modules
of `validate` and `plan`."""
VERBS = tuple(chain.from_iterable(GROUPS.values()))
STEPS = ("page", "reproduce")
"""The verbs here that build rules run."""
HIDDEN = ("answer",)
"""The verbs that no help lists: the Python interface runs them."""
