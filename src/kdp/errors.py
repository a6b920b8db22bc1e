"""Every error that kdp raises or understands, and whose move it is.

::

    KdpError
    ├── InvalidValueError (ValueError)   a value breaks a rule: its maker corrects it
    │   ├── InvalidNameError               a name or a path: the text shows a valid one
    │   ├── EditConflictError              two devices want different things at one place
    │   ├── ListTooLargeError              more devices than the kubelet can receive
    │   └── InvalidSlicesError             the API server would not take the devices
    ├── ConfigurationError               a setting is wrong: the admin corrects it, exit code 2
    ├── NotReady                         raised BY a hook: driver or hardware is not there yet
    │   └── NoHardware                     raised BY a hook: this node has no such hardware, which is no fault
    ├── AllocationError                  raised BY a hook: a sentence that the user understands
    ├── ClaimError                       this claim cannot be prepared: a sentence for its author
    ├── HookError                        a hook of the backend misbehaved: the vendor's bug
    │   ├── HookFailedError                it raised something unexpected, or returned nonsense
    │   └── HookTimeoutError               it did not return within its deadline
    ├── RegistrationError                the kubelet did not take us
    │   ├── RegistrationRefusedError       for a reason that only an admin can remove
    │   └── AlreadyConnectedError          it still holds this socket path: use a new one
    ├── CheckpointError                  the state of claims cannot be kept: the admin mounts its directory
    ├── CdiWriteError                    a CDI file cannot be written: the admin mounts its directory
    ├── PodResourcesError                the kubelet does not say who holds which device: asked again later
    └── PluginDirectoryGoneError         the directory we were given is unlinked: exit code 3

Rule 1: an error names the value, the rule and what to do.
Rule 2: what reaches the kubelet is a sentence of ours, never a traceback; the pod's author reads it in
``kubectl describe pod``, so it is cut well below the 8 KiB that gRPC's peer announces (contract section 0.1).
Rule 3: a vendor raises only `NotReady`, `NoHardware`, and `AllocationError`; all else that a hook raises is its bug.
"""

from __future__ import annotations

import re

__all__ = [
    "AllocationError",
    "AlreadyConnectedError",
    "CdiWriteError",
    "CheckpointError",
    "ClaimError",
    "ConfigurationError",
    "EditConflictError",
    "HookError",
    "HookFailedError",
    "HookTimeoutError",
    "InvalidNameError",
    "InvalidSlicesError",
    "InvalidValueError",
    "KdpError",
    "ListTooLargeError",
    "NoHardware",
    "NotReady",
    "PluginDirectoryGoneError",
    "PodResourcesError",
    "RegistrationError",
    "RegistrationRefusedError",
    "sentence",
]

MAX_SENTENCE_BYTES = 1024
"""What we let through to the kubelet of any error text, in bytes of UTF-8."""


class KdpError(Exception):
    """The root of all errors of kdp; catch it to tell our errors from everybody else's."""


class InvalidValueError(KdpError, ValueError):
    """A value given to kdp breaks a rule.

    Who acts: the author of the value, normally the vendor in a hook. The text names the value and the rule.
    """


class InvalidNameError(InvalidValueError):
    """A resource name, device id, CDI name, environment name or path breaks a rule of its kind.

    Who acts: the author of the name. The text ends with a valid example.
    """


class EditConflictError(InvalidValueError):
    """Two devices of one container want different values for one variable, node, mount or annotation.

    Who acts: the vendor, by giving equal values or by naming the variable in ``DeviceBackend.joined_env``.
    """


class ListTooLargeError(InvalidValueError):
    """The device list could exceed the 4 MiB that a kubelet accepts in one message (contract section 5).

    Who acts: the vendor or the admin, by declaring fewer or coarser devices, fewer replicas, or shorter ids. The list
    before stays in force.

    Attributes:
        fits: How many of the declared devices, in their order, would fit.
    """

    def __init__(self, message: str, *, fits: int) -> None:
        super().__init__(message)
        self.fits = fits


class InvalidSlicesError(InvalidValueError):
    """The API server would change the devices and say nothing, or the scheduler would not understand them.

    Who acts: the vendor, in ``discover`` or ``counters``. What was published before stays in force.
    """


class ConfigurationError(KdpError):
    """An option, an environment variable, a configuration file or a target is wrong.

    Who acts: the admin, before the start. The process ends with exit code 2.
    """


class NotReady(KdpError):
    """Raise it from any hook: the driver or the hardware is not there yet.

    kdp closes the backend, waits (0.1 s growing to 5 s, with jitter) and opens it again. Nothing is registered
    before the first success; devices that were already listed are Unhealthy with this text meanwhile.

    Who acts: the admin, if it lasts: the text says what is missing ("driver not loaded").
    """


class NoHardware(NotReady):
    """Raise it from any hook: this node has no such hardware, so there is no driver to wait for.

    It is what `NotReady` is, but the plugin counts as ready (``--when-no-devices``): a DaemonSet also runs on nodes
    without the hardware. If hardware is there and its driver is missing, raise `NotReady`.

    Who acts: nobody, or the admin, who chooses the nodes.
    """


class AllocationError(KdpError):
    """Raise it from ``allocate`` or ``prepare_container``: this container cannot have these devices.

    The text is what the pod's author reads in ``kubectl describe pod``: one sentence, without secrets.

    Who acts: the pod's author.
    """


class ClaimError(KdpError):
    """A claim asks for what this driver cannot do, as parameters that it does not know.

    The text is what the author of the claim reads in ``kubectl describe pod``; other claims are not touched.

    Who acts: the claim's author, or that of its class.
    """


class HookError(KdpError):
    """A hook of the backend misbehaved. Who acts: the vendor; the log has the traceback."""


class HookFailedError(HookError):
    """A hook raised something that it should not raise, or returned something of the wrong kind."""


class HookTimeoutError(HookError):
    """A hook did not return within its deadline; it is not called again until it has returned."""


class RegistrationError(KdpError):
    """The kubelet did not register us; kdp goes on trying. Who acts: nobody, unless it lasts."""


class RegistrationRefusedError(RegistrationError):
    """The kubelet refused the API version or the resource name: waiting does not help.

    Who acts: the admin or the vendor. kdp tries again at least once a minute, and after each restart of the kubelet.
    """


class AlreadyConnectedError(RegistrationError):
    """A kubelet 1.37 still holds a client for this socket path (contract section 2.5).

    Who acts: nobody: kdp uses a new socket name. If devices of an earlier plugin stay allocatable although
    nobody serves them, only a restart of the kubelet cures that.
    """


class CdiWriteError(KdpError):
    """A CDI file cannot be written.

    Who acts: the admin, who mounts the node's directory of CDI files writable into the plugin's container.
    """


class CheckpointError(KdpError):
    """What must be remembered of a claim cannot be read or written, so nothing is done for it.

    Who acts: the admin, who mounts a writable directory of the node for the driver's state, or makes room on its disk.
    """


class PodResourcesError(KdpError):
    """The kubelet's pod-resources API is not there, throttles or fails; kdp asks again later.

    Who acts: nobody, unless it lasts: then the admin, who mounts the API's directory into the plugin's container.
    """


class PluginDirectoryGoneError(KdpError):
    """The plugin directory that we were given is unlinked under us (a pinned mount; contract section 4.4).

    Who acts: nobody in this process: only a fresh mount helps, so the process ends with exit code 3 and the
    DaemonSet starts a new container.
    """


def message_of(error: BaseException) -> str:
    """Return an exception's own words; those of one that fails to tell them are its class's name."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever a class of others does
        return type(error).__name__


def kind_of(value: object) -> str:
    """Return the class of a value with its article, as ``an int``."""
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeioAEIO' else 'a'} {name}"


def in_one_line(error: BaseException) -> str:
    """Return class, text, and place of an exception of others in one line; those of kdp speak for themselves.

    For logs and terminals only: the text may hold anything, so it must not reach a pod. See `sentence`.
    """
    if isinstance(error, KdpError):
        return sentence(error)
    text = " ".join(message_of(error).split())
    trace = error.__traceback__
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith("<"):
            place = f" ({code.co_filename}, line {trace.tb_lineno})"
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        place = ""  # its text has it
    name = type(error).__name__
    return f"{name}: {text}{place}" if text not in ("", name) else f"{name}{place}"


def lasting(text: str) -> str:
    """Return a text without the places of objects in memory: they are others each time, and no news."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""What `str.isprintable` takes for printable, although nothing is seen of it: fillers and selectors."""


def printable(text: str, most: int) -> str:
    r"""Return a text as it may be shown: one line, in which every character is seen.

    What does not print is written as Python does, ``\x1b`` or ``\u202e``: controls, ends of lines, marks that turn the
    direction of writing, tags, fillers, and what UTF-8 cannot carry. A text that was made printable stays as it is.

    Args:
        text: What somebody else has chosen, at any length.
        most: Characters that are kept, at least 4; a longer text ends with ``...``.
    """
    shown = text[: most + 1]
    if not shown.isprintable() or (not shown.isascii() and _UNSEEN.search(shown)):
        # Not by a codec: Python opens the module of one that it has not used yet, and there may be no descriptor.
        shown = "".join(each if each.isprintable() and not _UNSEEN.match(each) else ascii(each)[1:-1] for each in shown)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def within_bytes(text: str, most: int) -> str:
    """Return a printable text that has at most so many bytes of UTF-8, and ends with three dots if it had more."""
    encoded = printable(text, most).encode()
    return encoded.decode() if len(encoded) <= most else f"{encoded[: most - 3].decode(errors='ignore')}..."


def sentence(error: BaseException) -> str:
    """Return what may leave the process of an error: one line of text, without traceback, cut to 1 KiB.

    Errors of kdp and those that vendors raise on purpose speak for themselves; of any other exception only the
    class is named, because its text may hold anything. What does not print is escaped (`printable`).
    """
    text = " ".join(message_of(error).split()) if isinstance(error, KdpError) else ""
    text = text or f"internal error ({type(error).__name__}); the plugin's log has the details"
    # An odd file name may hold what UTF-8 cannot say.
    return within_bytes(text.encode(errors="replace").decode(), MAX_SENTENCE_BYTES)
