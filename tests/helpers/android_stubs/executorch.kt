// What examples/android uses of ExecuTorch's AAR, for the Kotlin compiler: signatures of `extension/android` in
// ExecuTorch 1.5, without code.
package org.pytorch.executorch

open class Module private constructor() : java.io.Closeable {
    open fun execute(methodName: String, vararg inputs: EValue): Array<EValue> = TODO()

    override fun close() = TODO()

    companion object {
        @JvmStatic
        @JvmOverloads
        fun load(modelPath: String?, loadMode: Int = 0, numThreads: Int = 0): Module = TODO()
    }
}

class EValue private constructor() {
    fun toTensor(): Tensor = TODO()

    companion object {
        @JvmStatic fun from(tensor: Tensor): EValue = TODO()
    }
}

abstract class Tensor {
    open val dataAsFloatArray: FloatArray
        get() = TODO()

    companion object {
        @JvmStatic fun fromBlob(data: FloatArray, shape: LongArray): Tensor = TODO()
    }
}
