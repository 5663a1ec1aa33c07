"""NXP eIQ Neutron: NPUs of i.MX RT and MCX microcontrollers, for quantized models."""
