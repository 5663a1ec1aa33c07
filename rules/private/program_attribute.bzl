"""Attributes that name programs. They take files too, so that an error can say what to write in place of one."""

load("//rules:providers.bzl", "ExecutorchProgramInfo", "ExecutorchProgramInputsInfo")

# The providers of programs that can be tested and measured.
RUNNABLE = [ExecutorchProgramInfo, ExecutorchProgramInputsInfo]

def program_attribute(providers = [ExecutorchProgramInfo], **kwargs):
    """Returns an attribute with a program, which `program_info` reads.

    Args:
      providers: list of what the program must have.
      **kwargs: more arguments of `attr.label`.
    """
    return attr.label(allow_files = True, providers = providers, **kwargs)

def programs_attribute(providers = [ExecutorchProgramInfo], **kwargs):
    """Returns an attribute with programs, which `program_info` reads.

    Args:
      providers: list of what each program must have.
      **kwargs: more arguments of `attr.label_list`.
    """
    return attr.label_list(allow_files = True, providers = providers, **kwargs)

def program_info(target, attribute, provider = ExecutorchProgramInfo):
    """Returns the ExecutorchProgramInfo of a target, or another provider of programs.

    Args:
      target: Target.
      attribute: string, the attribute that names it, for the message.
      provider: the provider.

    Returns:
      ExecutorchProgramInfo, or what `provider` makes.
    """
    if provider in target:
        return target[provider]
    name = target.label.name
    if target.files.to_list()[0].is_source or not name.endswith(".pte"):
        return fail("{} is a file: write the `executorch_program` that makes it".format(target.label), attr = attribute)
    return fail("write `:{}`, the program, in place of `:{}`, one of its files".format(name[:-len(".pte")], name), attr = attribute)
