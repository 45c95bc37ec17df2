"""Best-first beam search as a `custom_generate` repository: hands all of `generate`'s arguments to `bestfirst.generate`."""

from bestfirst.integrations.generate import generate_with


def generate(model, **arguments):  # noqa: ANN001, ANN003, ANN201
    """`model.generate(**inputs, num_beams=5, custom_generate="<this folder>", trust_remote_code=True)`."""
    return generate_with(model, arguments)
