"""Types of the part of cuda-bindings that sim2real uses; its modules are compiled and ship none."""
