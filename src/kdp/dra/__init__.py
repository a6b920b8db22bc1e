"""Dynamic Resource Allocation (DRA): publishes a backend's devices as ResourceSlices and prepares claims.

It knows neither where devices come from nor the device plugin protocol.

`driver` has `DraDriver`, which puts it all together. The room `publishing` offers the devices, `claims` prepares what
was allocated, and the files beside them speak to the kubelet.

Source of the rules: the API ``resource.k8s.io/v1``; the modules name the files of upstream that enforce them.
"""
